"""Write the list of the jars of a Kafka broker, with their checksums, for the local Kafka:

    .venv/bin/python scripts/kafka_jars.py 3.9.2      # writes dev/kafka/jars-3.9.txt

Ivy, which PySpark ships, resolves the broker and what it runs on from its default repository.
"""

import argparse
import hashlib
import subprocess
import tempfile
from pathlib import Path

from onceward.dev.jars import ivy_jar
from onceward.dev.java import find_java

LISTS = Path(__file__).resolve().parent.parent / "dev" / "kafka"
LOGGING = {
    3: ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    4: ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
}
"""What writes the log of a major version: a broker's own description leaves it to the operator."""

SETTINGS = """<ivysettings><settings defaultResolver='published'/><caches defaultCacheDir='{cache}'/>
<resolvers><ibiblio name='published' m2compatible='true'/></resolvers></ivysettings>"""
# without the network layer of ZooKeeper, which no broker with KRaft opens
MODULE = """<ivy-module version='2.0'><info organisation='onceward' module='broker'/>
<configurations><conf name='default'/></configurations>
<dependencies>{wanted}<exclude org='io.netty'/></dependencies></ivy-module>"""


def resolve(version: str, work: Path) -> None:
    """Fetch the jars of a release to ``work/jars/GROUP/NAME/VERSION.jar``."""
    wanted = [("org.apache.kafka", "kafka_2.13", version), LOGGING[int(version.partition(".")[0])]]
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(SETTINGS.format(cache=work / "ivy"))
    dependencies = (
        f"<dependency org='{group}' name='{name}' rev='{revision}' conf='default->master,runtime'/>"
        for group, name, revision in wanted
    )
    module.write_text(MODULE.format(wanted="".join(dependencies)))
    command = [find_java(), "-jar", str(ivy_jar("the broker's")), "-settings", str(settings), "-ivy", str(module)]
    pattern = f"{work}/jars/[organisation]/[module]/[revision].[ext]"
    subprocess.run([*command, "-retrieve", pattern, "-types", "jar", "bundle"], check=True)


def listed(jars: Path, version: str) -> str:
    """The list: a line for each jar, in the order of the class path."""
    lines = []
    for jar in jars.glob("*/*/*.jar"):
        content = jar.read_bytes()
        name = f"{jar.parent.parent.name}:{jar.parent.name}:{jar.stem}"
        lines.append((name, f"{hashlib.sha256(content).hexdigest()} {len(content):8} {name}\n"))
    head = f"# Kafka broker {version} and what it runs on: sha256, bytes, group:name:version of every jar.\n"
    return head + "".join(line for _, line in sorted(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="The list of the jars of a Kafka broker.")
    parser.add_argument("version", help="a release, for example 3.9.2")
    version: str = parser.parse_args().version
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        resolve(version, work)
        target = LISTS / f"jars-{version.rpartition('.')[0]}.txt"
        target.write_text(listed(work / "jars", version), encoding="ascii")
    print(target)


if __name__ == "__main__":
    main()
