"""The file of tokens: read with its permissions checked, changed as a whole or not at all.

Rule: a file that others than its owner and group may write is refused: whoever writes it is an operator.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.tokens import Token, TokenLineError, Tokens, parse_tokens

log = logging.getLogger(__name__)
LARGEST_BYTES: Final = 1 << 20
NEW_MODE: Final = 0o600


def read_token_file(path: Path) -> Tokens:
    """Returns the tokens of a file.

    Raises:
        AccessSettingsError: it is not there, is no file, may be written by anybody, is too long, or a line is wrong.
    """
    return _parse(path, _read_text(path))


def _read_text(path: Path) -> str:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            _check_mode(path, os.fstat(file.fileno()))
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise AccessSettingsError(
            f"token file {path}: {error.strerror}; `meshwright-agent token add NAME --scope operate --file {path}` "
            "makes one, which the agent's user must be able to read"
        ) from None
    if len(data) > LARGEST_BYTES:
        raise AccessSettingsError(f"token file {path}: longer than {LARGEST_BYTES} bytes; is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AccessSettingsError(f"token file {path}: is not UTF-8 text; is it the right file?") from None


def _check_mode(path: Path, seen: os.stat_result) -> None:
    mode = stat.S_IMODE(seen.st_mode)
    if not stat.S_ISREG(seen.st_mode):
        raise AccessSettingsError(f"token file {path}: is no file; give the path of one")
    if mode & stat.S_IWOTH:
        raise AccessSettingsError(
            f"token file {path}: anybody may write it (mode {mode:04o}), and so become an operator; chmod 600 {path}"
        )
    if mode & (stat.S_IROTH | stat.S_IWGRP):
        log.warning("token file %s has mode %04o; it holds hashes only, but 0600 or 0640 is enough", path, mode)


def _parse(path: Path, text: str) -> Tokens:
    try:
        return parse_tokens(text)
    except TokenLineError as error:
        raise AccessSettingsError(f"token file {path}, {error}") from None


def add_token(path: Path, token: Token) -> None:
    """Appends a token; makes the file, mode 0600, if it is not there.

    Raises:
        AccessSettingsError: the file cannot be used or written, or has a token of this name.
    """

    def append(text: str) -> str:
        if any(token.name == other.name for other in _parse(path, text).all):
            raise AccessSettingsError(
                f"token file {path}: {token.name} is there; choose another name, or remove it first: "
                f"`meshwright-agent token remove {token.name} --file {path}`"
            )
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{token}\n"

    _change(path, append, may_make=True)


def remove_token(path: Path, name: str) -> None:
    """Takes a token out; comments and other lines stay.

    Raises:
        AccessSettingsError: the file cannot be used or written, or has no token of this name.
    """

    def drop(text: str) -> str:
        names = [token.name for token in _parse(path, text).all]
        if name not in names:
            raise AccessSettingsError(f"token file {path}: has no {name}; it has {', '.join(names) or 'no token'}")
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if line.split("#", 1)[0].split()[:1] != [name])

    _change(path, drop, may_make=False)


def _change(path: Path, edit: Callable[[str], str], *, may_make: bool) -> None:
    path = path.resolve()  # a link, as in a mounted secret, stays one
    try:
        with _locked(path.parent):
            is_new = may_make and not path.exists()
            text = edit("" if is_new else _read_text(path))
            _parse(path, text)
            _replace(path, text, None if is_new else path.stat())
    except OSError as error:
        raise AccessSettingsError(f"token file {path}: {error.strerror}; its folder must be writable") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder against another `token add` at the same time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str, before: os.stat_result | None) -> None:
    """Writes beside and renames; owner and mode of before stay, so that the agent's user can still read it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_MODE), "w") as file:
            if before is not None:
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
