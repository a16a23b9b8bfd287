"""Kubeconfig files: reading, merging as kubectl does, and selecting a context."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gpu_scheduler.base.documents import BadDocumentError, parse_yaml
from gpu_scheduler.base.text import one_line
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.objects import Json

T = TypeVar("T")

_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class _Kebab(msgspec.Struct, rename="kebab"):
    """Base of structs whose fields are kebab-case in the file."""


class _Camel(msgspec.Struct, rename="camel"):
    """Base of structs whose fields are camelCase in the file."""


class Extension(_Kebab):
    name: str = ""
    extension: Any = None


class KubeconfigCluster(_Kebab):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[Extension] = []

    @property
    def exec_config(self) -> Any:
        """The configuration for exec plugins, or None."""
        return next((found.extension for found in self.extensions if found.name == _EXEC_EXTENSION), None)


class EnvironmentVariable(_Camel):
    name: str
    value: str = ""


class Exec(_Camel):
    api_version: str = ""
    command: str = ""
    args: list[str] = []
    env: list[EnvironmentVariable] = []
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class KubeconfigUser(_Kebab):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: Exec | None = None
    auth_provider: Json | None = None
    act_as: str = msgspec.field(name="as", default="")


class KubeconfigContext(_Kebab):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Kebab):
    name: str
    cluster: KubeconfigCluster = msgspec.field(default_factory=KubeconfigCluster)


class _NamedUser(_Kebab):
    name: str
    user: KubeconfigUser = msgspec.field(default_factory=KubeconfigUser)


class _NamedContext(_Kebab):
    name: str
    context: KubeconfigContext = msgspec.field(default_factory=KubeconfigContext)


class _File(_Kebab):
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []


class KubeconfigEntry(NamedTuple, Generic[T]):
    """A cluster, user or context of a kubeconfig, with its file and its path there."""

    value: T
    file: Path
    where: str

    def wrong(self, field: str, what: str) -> ConfigError:
        """Makes the error for a wrong field."""
        return ConfigError(one_line(f"{self.file}: {self.where}.{field}: {what}"))

    def resolve(self, path: str) -> Path:
        """Resolves a path relative to the directory of the file."""
        return self.file.parent / path

    def read(self, field: str) -> bytes:
        """Reads `field`-data, or the file that `field` names; empty if neither is set."""
        attribute = field.replace("-", "_")
        data: str = getattr(self.value, f"{attribute}_data")
        path: str = getattr(self.value, attribute)
        if data:
            try:
                return base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError):
                raise self.wrong(f"{field}-data", "not base64; it must be PEM text in base64") from None
        if path:
            try:
                return self.resolve(path).read_bytes()
            except OSError as error:
                raise self.wrong(field, f"{self.resolve(path)}: {error.strerror}") from None
            except ValueError:
                raise self.wrong(field, f"{path[:60]!a} is not a file path") from None
        return b""


class SelectedContext(NamedTuple):
    """The cluster, user and namespace of a context."""

    cluster: KubeconfigEntry[KubeconfigCluster]
    user: KubeconfigEntry[KubeconfigUser]
    namespace: str


def read_kubeconfig(files: Sequence[Path], context: str | None = None) -> SelectedContext:
    """Reads a context, by default the current one, from merged files: the first file that defines a name wins."""
    clusters: dict[str, KubeconfigEntry[KubeconfigCluster]] = {}
    users: dict[str, KubeconfigEntry[KubeconfigUser]] = {}
    contexts: dict[str, KubeconfigEntry[KubeconfigContext]] = {}
    current = ""
    for file in files:
        found = _read(file)
        current = current or found.current_context
        for cluster in found.clusters:
            clusters.setdefault(
                cluster.name, KubeconfigEntry(cluster.cluster, file, f"clusters[{cluster.name}].cluster")
            )
        for user in found.users:
            users.setdefault(user.name, KubeconfigEntry(user.user, file, f"users[{user.name}].user"))
        for named in found.contexts:
            contexts.setdefault(named.name, KubeconfigEntry(named.context, file, f"contexts[{named.name}].context"))
    name = context or current
    where = ", ".join(map(str, files))
    if not name:
        raise ConfigError(one_line(f"{where}: current-context: not set; name one with --context: {_names(contexts)}"))
    chosen = contexts.get(name)
    if chosen is None:
        field = "--context" if context else "current-context"
        raise ConfigError(one_line(f'{where}: {field}: no context "{name}"; there is {_names(contexts)}'))
    return SelectedContext(
        _look_up(chosen, "cluster", clusters),
        _look_up(chosen, "user", users)
        if chosen.value.user
        else KubeconfigEntry(KubeconfigUser(), chosen.file, chosen.where),
        chosen.value.namespace or "default",
    )


def _look_up(
    chosen: KubeconfigEntry[KubeconfigContext], field: str, entries: Mapping[str, KubeconfigEntry[T]]
) -> KubeconfigEntry[T]:
    name = getattr(chosen.value, field)
    found = entries.get(name)
    if found is None:
        raise chosen.wrong(field, f'no {field} "{name}"; there is {_names(entries)}')
    return found


def _names(entries: Mapping[str, object]) -> str:
    return ", ".join(entries) or "none"


def _read(file: Path) -> _File:
    try:
        return msgspec.convert(_drop_nulls(parse_yaml(file.read_bytes())) or {}, _File)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except BadDocumentError as error:
        raise ConfigError(f"{file}: not YAML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(one_line(f"{file}: {error}")) from None


def _drop_nulls(found: Any) -> Any:
    """Removes null fields: null means not set."""
    if isinstance(found, dict):
        return {key: _drop_nulls(value) for key, value in found.items() if value is not None}
    if isinstance(found, list):
        return [_drop_nulls(item) for item in found]
    return found
