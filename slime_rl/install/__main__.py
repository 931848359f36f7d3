"""`python -m slime_rl.install cpu|gpu`: install what slime_rl runs on into the environment of this Python.

Run from a checkout as `python slime_rl/install/__main__.py cpu --venv .venv --editable . --dev`, it makes the
environment first. It imports the standard library only, and nothing of slime_rl, which may not be installed yet.

Three passes are needed on a CPU, because sglang pins CUDA packages: torch; everything that resolves against the
constraints; and the engine packages without their dependencies. On a GPU sglang is installed with its own pins. A
stamp in the environment makes a second call return at once.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
PTH = "slime_rl_cpu_shims.pth"
STAMP = "slime_rl_install.stamp"


def main(argv: list[str] | None = None) -> int:
    """Install and return an exit status; 2 for a Python that cannot run the engines."""
    parser = argparse.ArgumentParser(prog="slime_rl.install", description="Install what slime_rl runs on.")
    parser.add_argument("device", choices=("cpu", "gpu"), help="which build of the engines")
    parser.add_argument("--venv", type=pathlib.Path, help="make this environment first and install there")
    parser.add_argument("--editable", type=pathlib.Path, help="a checkout of slime_rl to install in place")
    parser.add_argument("--dev", action="store_true", help="the tools for checks, tests and benchmarks too")
    args = parser.parse_args(argv)
    if sys.version_info[:2] != (3, 11):
        got = sys.version.split()[0]
        print(f"slime_rl.install: expected Python 3.11, which the pinned wheels are for, got {got}", file=sys.stderr)
        return 2
    python = venv_python(args.venv) if args.venv else pathlib.Path(sys.executable)
    stamp = pathlib.Path(ask(python, "import sys; print(sys.prefix)")) / STAMP
    wanted = fingerprint(args)
    if stamp.exists() and stamp.read_text() == wanted:
        return 0
    for step in passes(args):
        pip(python, *step)
    if args.device == "cpu":
        install_shims(pathlib.Path(ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))")))
    stamp.write_text(wanted)
    return 0


def passes(args: argparse.Namespace) -> list[list[str]]:
    """The arguments of each `pip install`, in the order they must run."""
    dev = ["-r", str(HERE / "requirements-dev.txt")] if args.dev else []
    core = ["--editable", str(args.editable)] if args.editable else ["slime-rl"]
    if args.device == "gpu":
        return [["-r", str(HERE / "requirements-gpu.txt"), *dev, *core]]
    constraints = ["-c", str(HERE / "constraints-cpu.txt")]
    return [
        [*constraints, "torch"],
        [*constraints, "-r", str(HERE / "requirements-cpu.txt"), *dev, *core],
        ["--no-deps", "-r", str(HERE / "requirements-nodeps.txt")],
    ]


def install_shims(site: pathlib.Path) -> None:
    """Put the CPU shims before `site` on the path of every process of the environment."""
    target = site / "slime_rl_cpu_shims"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(HERE / "shims", target, ignore=shutil.ignore_patterns("__pycache__"))
    (site / PTH).write_text(f"import sys; sys.path.insert(0, {str(target)!r})\n")


def fingerprint(args: argparse.Namespace) -> str:
    """Changes whenever a file that decides what is installed does."""
    digest = hashlib.sha256(f"{args.device} {args.dev} {args.editable}".encode())
    files = [p for p in sorted(HERE.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    if args.editable:
        files.append(args.editable / "pyproject.toml")
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def venv_python(venv: pathlib.Path) -> pathlib.Path:
    """The interpreter of `venv`, made by this Python where it is missing."""
    python = venv / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(venv)])
    return python


def pip(python: pathlib.Path, *args: str) -> None:
    print("pip install", *args, flush=True)
    run([str(python), "-m", "pip", "install", "--quiet", *args])


def run(command: list[str]) -> None:
    done = subprocess.run(command, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, check=False)
    if done.returncode:
        raise SystemExit(f"slime_rl.install: exit status {done.returncode} from: {' '.join(command)}")


def ask(python: pathlib.Path, code: str) -> str:
    if python == pathlib.Path(sys.executable) and "purelib" in code:
        return sysconfig.get_path("purelib")
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
