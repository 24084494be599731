"""How a Spark error is reported to users. The texts are those of PySpark 4.3."""

from onceward.driver.causes import cause_of

IN_A_UDF = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/orders.py", line 12, in euros
    return float(text)
           ^^^^^^^^^^^
ValueError: could not convert string to float: 'x'
on two lines
"""

IN_A_TASK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 3.0 (TID 9) (localhost executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/opt/spark/worker.py", line 1, in main
    process()
  File "/opt/job/sinks/kafka/executor/delivery.py", line 99, in _check
    raise self._failed(why)
onceward.sinks.kafka.errors.DeliveryError: Slot 1 was not delivered: 1 records were refused

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/job/sinks/kafka/executor/delivery.py", line 99, in _check
    raise self._failed(why)
onceward.sinks.kafka.errors.DeliveryError: Slot 1 was not delivered: 1 records were refused

\t... 1 more
"""


def test_a_class_of_spark_behind_an_exception_of_python_is_no_part_of_its_message() -> None:
    text = 'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\nValueError: no\n SQLSTATE: 38000\n'
    assert cause_of(RuntimeError(text)).text == "ValueError: no (y.py, line 3, in f)"


def test_the_line_that_is_named_is_of_the_users_own_file_where_a_library_raised_below_it() -> None:
    deep = "".join(
        f'  File "{file}", line {line}, in {name}\n    code()\n'
        for file, line, name in (
            ("/opt/venv/lib/python3.12/site-packages/onceward/coordinator/pipeline/executor.py", 9, "write"),
            ("/opt/orders/job.py", 12, "totals"),
            ("/opt/orders/job.py", 13, "enrich"),
            ("/usr/lib/python3.12/json/__init__.py", 346, "loads"),
            ("<frozen abc>", 1, "checked"),
            ("/usr/lib/python3/dist-packages/decoder.py", 355, "raw_decode"),
        )
    )
    named = cause_of(RuntimeError(f"Traceback (most recent call last):\n{deep}ValueError: no\n")).text
    assert named == "ValueError: no (job.py, line 13, in enrich)"


def test_an_exception_of_libraries_alone_is_reported_with_its_innermost_line() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/v/lib/python3.11/site-packages/a.py", line 1, in f\n'
        '  File "/v/lib/python3.11/site-packages/b.py", line 2, in g\nValueError: no\n'
    )
    assert cause_of(RuntimeError(text)).text == "ValueError: no (b.py, line 2, in g)"


def test_an_exception_of_a_function_is_reported_whole_with_its_location() -> None:
    cause = cause_of(RuntimeError(IN_A_UDF))
    assert cause.text == (
        "ValueError: could not convert string to float: 'x'\non two lines (orders.py, line 12, in euros)"
    )
    assert cause.by_record


def test_an_error_of_ours_is_reported_by_its_message_alone_and_blames_no_record() -> None:
    cause = cause_of(RuntimeError(IN_A_TASK))
    assert cause.text == "Slot 1 was not delivered: 1 records were refused"
    assert not cause.by_record


def test_a_failing_expression_is_reported_by_sparks_error_class() -> None:
    cause = cause_of(RuntimeError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== DataFrame ==\n\tat x"))
    assert cause.text == "[DIVIDE_BY_ZERO] Division by zero."
    assert cause.by_record


def test_a_column_that_spark_cannot_find_is_reported_without_the_plan_and_the_place_in_it() -> None:
    said = "[UNRESOLVED_COLUMN] A column `a` cannot be resolved. Did you mean [`b`]."
    assert cause_of(RuntimeError(f"{said} SQLSTATE: 42703; line 1 pos 0;\n'Filter ('a = 1)")).text == said


def test_a_lost_executor_blames_no_record() -> None:
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: Task 1 failed 4 times, most recent failure: Lost task 1.3 in stage 2.0 (TID 7) (host executor 3): "
        "ExecutorLostFailure (executor 3 exited unrelated to the running tasks)\n\tat a"
    )
    cause = cause_of(RuntimeError(text))
    assert cause.text.startswith("ExecutorLostFailure")
    assert not cause.by_record


def test_an_error_without_a_word_is_named() -> None:
    assert cause_of(KeyError()).text == "KeyError()"
