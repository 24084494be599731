"""Types of an Iceberg table beside those of Spark."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from onceward.common.errors import ConfigurationError
from onceward.sinks.lake.driver.columns import Column
from onceward.sinks.lake.driver.types import parse_type

__all__ = ["columns_in", "iceberg_type", "new_columns", "spark_type", "unwritten"]

_SPARK: dict[type[IcebergType], str] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "bigint",
    FloatType: "float",
    DoubleType: "double",
    DateType: "date",
    TimestampType: "timestamp_ntz",
    TimestamptzType: "timestamp",
    StringType: "string",
    BinaryType: "binary",
    FixedType: "binary",
}
_ICEBERG: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    **dict.fromkeys(("byte", "short", "integer"), IntegerType()),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp_ntz": TimestampType(),
    "timestamp": TimestamptzType(),
    "string": StringType(),
    "binary": BinaryType(),
}


def columns_in(fields: Sequence[NestedField]) -> list[Column]:
    """Return the columns of a table as Spark has them."""
    return [Column(one.name, spark_type(one.field_type), nullable=not one.required) for one in fields]


def spark_type(kind: IcebergType) -> str:
    """Return a type as Spark writes it; one that Spark has not, as Iceberg does."""
    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case ListType():
            return f"array<{spark_type(kind.element_type)}>"
        case MapType():
            return f"map<{spark_type(kind.key_type)},{spark_type(kind.value_type)}>"
        case StructType():
            return f"struct<{','.join(f'{one.name}:{spark_type(one.field_type)}' for one in kind.fields)}>"
    return _SPARK.get(type(kind), str(kind))


def unwritten(fields: Sequence[NestedField], inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and types of columns, and of what is nested in them, that Spark cannot hold."""
    for one in fields:
        name = f"{inside}{one.name}"
        match one.field_type:
            case ListType() as kind:
                yield from unwritten([kind.element_field], f"{name}.")
            case MapType() as kind:
                yield from unwritten([kind.key_field, kind.value_field], f"{name}.")
            case StructType() as kind:
                yield from unwritten(kind.fields, f"{name}.")
            case kind if type(kind) not in _SPARK and not isinstance(kind, DecimalType):
                yield name, str(kind)


def new_columns(given: Sequence[tuple[str, str]], columns: Sequence[Column], table: str) -> dict[str, IcebergType]:
    """Return the columns of records that a table lacks. Raises ConfigurationError for a type that it cannot have."""
    known = {one.name.lower() for one in columns}
    found = {}
    for name, kind in given:
        if name.lower() not in known:
            try:
                found[name] = iceberg_type(kind)
            except ValueError as error:
                raise ConfigurationError(
                    f"Column {name} cannot be added to the Iceberg table {table}: {error}. Nothing was read or "
                    "written. Cast it to another type, or leave it out."
                ) from None
    return found


def iceberg_type(text: str) -> IcebergType:
    """Return the type for one that Spark writes so. Raises ValueError. The ids in it are none of a table."""
    return _converted(parse_type(text), itertools.count(1))


def _converted(kind: Any, ids: "itertools.count[int]") -> IcebergType:
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
            return DecimalType(int(precision), int(scale))
        return _ICEBERG[kind]
    match kind["type"]:
        case "array":
            return ListType(next(ids), _converted(kind["elementType"], ids), element_required=False)
        case "map":
            key, value = (_converted(kind[part], ids) for part in ("keyType", "valueType"))
            return MapType(next(ids), key, next(ids), value, value_required=False)
    fields = (NestedField(next(ids), one["name"], _converted(one["type"], ids)) for one in kind["fields"])
    return StructType(*fields)
