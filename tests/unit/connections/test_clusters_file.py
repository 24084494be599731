"""A clusters file gives the clusters by name, or one message with every error."""

from pathlib import Path

import pytest

from onceward import KafkaCluster, load_clusters
from onceward.common.errors import ConfigurationError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "clusters.toml"
    file.write_text(text)
    return file


def test_clusters_are_found_by_name_whether_their_keys_are_quoted_or_not(tmp_path: Path) -> None:
    clusters = load_clusters(
        write(
            tmp_path,
            """
            [clusters.main]
            bootstrap_servers = "a:1"
            [clusters.other]
            bootstrap_servers = "b:1,c:1"
            [clusters.other.config]
            "client.id" = "me"
            linger.ms = 5
            socket.keepalive.enable = true
            """,
        )
    )
    config: dict[str, str | int | bool] = {"client.id": "me", "linger.ms": 5, "socket.keepalive.enable": True}
    assert clusters == {"main": KafkaCluster("a:1"), "other": KafkaCluster("b:1,c:1", name="other", config=config)}


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        surprise = 1
        [clusters.Main]
        bootstrap_servers = "a:1"
        [clusters.two]
        [clusters.three]
        bootstrap_servers = "a:1"
        brokers = "a:1"
        [clusters.four]
        bootstrap_servers = "a:1"
        config."sasl.password" = "plain"
        """,
    )
    with pytest.raises(ConfigurationError) as caught:
        load_clusters(file)
    message = str(caught.value)
    for expected in (str(file), "surprise", "[clusters.Main]", "[clusters.two]", "brokers", "sasl.password"):
        assert expected in message
    assert "plain" not in message.replace("sasl_plain", "")


@pytest.mark.parametrize("text", ["", "clusters = 1", "[clusters]", "not toml", "clusters.a = 3"])
def test_a_file_without_clusters_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="systems file"):
        load_clusters(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load_clusters(tmp_path / "none.toml")


def test_a_cluster_may_stand_among_systems_of_other_kinds(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [systems.main]
        kind = "kafka"
        bootstrap_servers = "a:1"
        [systems.orders]
        kind = "unheard-of"
        url = "somewhere"
        [clusters.other]
        bootstrap_servers = "b:1"
        """,
    )
    assert load_clusters(file) == {"main": KafkaCluster("a:1"), "other": KafkaCluster("b:1", name="other")}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[systems.main]\nbootstrap_servers = 'a:1'", r"\[systems.main\] kind: name the kind"),
        ("[systems.main]\nkind = 3", r"\[systems.main\] kind: name the kind"),
        ("[clusters.main]\nkind = 'kafka'\nbootstrap_servers = 'a:1'", r"kind: belongs into tables \[systems.NAME\]"),
        ("[systems.main]\nkind = 'kafka'\n[clusters.main]\n", r"\[clusters.main\] has the name of \[systems.main\]"),
        ("[systems.main]\nkind = 'unheard-of'", "no table is of kind kafka"),
    ],
)
def test_a_table_whose_kind_is_not_clear_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_clusters(write(tmp_path, text))
