"""What is handed in as an archive: it is unpacked if it is harmless, and refused in a sentence if not."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from conformance.batch.archives import MOST_FILES, unpacked
from conformance.batch.entries import Entry, entries
from conformance.batch.folders import MOST_DEPTH
from pytest_ddp.errors import UsageError

ADAPTERS = """
def ddp_overhead(s, w, o, n_b): return s / w / n_b + n_b * o
def optimal_bucket_size(s, w, o): return (s * w * o) ** 0.5
"""


def tar_with(path, name, **attributes):
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        for attribute, value in attributes.items():
            setattr(member, attribute, value)
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def zip_with_link(path):
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc")
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (zip_with_link, "holds a link, 'link': it is not unpacked"),
        (lambda at: tar_with(at, "../evil.py", size=1), "'../evil.py', which lies outside"),
        (lambda at: tar_with(at, "/etc/evil.py", size=1), "'/etc/evil.py', which lies outside"),
        (lambda at: tar_with(at, "link", type=tarfile.SYMTYPE, linkname="/etc"), "'link', which is no plain file"),
        (lambda at: tar_with(at, "device", type=tarfile.CHRTYPE), "'device', which is no plain file"),
    ],
    ids=["a link in a zip", "outside", "absolute", "link", "device"],
)
def test_a_hostile_archive_is_refused(tmp_path, make, said):
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(UsageError, match=said):
        unpacked(make(tmp_path / "x.tar"), place)
    assert list(place.iterdir()) == []


def test_the_kind_of_an_archive_is_that_of_its_content(tmp_path):
    tar_with(tmp_path / "really_a_tar.zip", "adapters.py", size=3)
    with zipfile.ZipFile(tmp_path / "really_a_zip.tar.gz", "w") as archive:
        archive.writestr("adapters.py", "xxx")
    for name in ("really_a_tar.zip", "really_a_zip.tar.gz"):
        place = tmp_path / f"{name} unpacked"
        place.mkdir()
        assert (unpacked(tmp_path / name, place) / "adapters.py").read_text(encoding="utf-8") == "xxx"


def test_an_empty_upload_is_named_as_such(tmp_path):
    (tmp_path / "x.zip").touch()
    with pytest.raises(UsageError, match=r"x\.zip cannot be unpacked: it is empty"):
        unpacked(tmp_path / "x.zip", tmp_path)


def zipped(at, *names):
    at.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(at, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return at


def test_an_archive_beside_a_report_is_the_submission_and_of_two_none_is(tmp_path):
    ada = Entry("ada", tmp_path / "ada")
    zipped(tmp_path / "ada" / "upload" / "code.zip", "hw/adapters.py", ".DS_Store")
    (tmp_path / "ada" / "upload" / "writeup.pdf").touch()
    assert ada.folder(tmp_path / "place") == tmp_path / "place" / "hw"
    zipped(tmp_path / "ada" / "upload" / "old.zip", "adapters.py")
    with pytest.raises(UsageError, match=r"ada holds code\.zip and old\.zip: only one of them can be graded"):
        ada.folder(tmp_path / "place")
    (tmp_path / "ada" / "upload" / "adapters.py").touch()
    assert ada.folder(tmp_path / "place") == tmp_path / "ada"


def test_what_another_student_has_handed_in_is_not_ones_own(tmp_path):
    zipped(tmp_path / "bob.zip", "adapters.py")
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "hw.zip").symlink_to("../bob.zip")
    assert Entry("ada", tmp_path / "ada").folder(tmp_path / "place") == tmp_path / "ada"


def test_what_package_managers_keep_is_neither_unpacked_nor_a_reason_to_refuse(tmp_path):
    names = [f"hw/node_modules/{number}" for number in range(MOST_FILES)]
    place = unpacked(zipped(tmp_path / "x.zip", "hw/adapters.py", *names), tmp_path / "zip")
    assert [path.name for path in place.iterdir()] == ["adapters.py"]
    link = tarfile.TarInfo("hw/.venv/bin/python")
    link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("hw/adapters.py"))
    place = unpacked(tmp_path / "x.tar", tmp_path / "tar")
    assert [path.name for path in place.iterdir()] == ["adapters.py"]


def test_archives_have_names_in_large_letters_too(tmp_path):
    for name in ("Ada.ZIP", "bob.Tar.Gz", "cy.tar.xz", "dan.tar.bz2"):
        (tmp_path / name).touch()
    assert [one.name for one in entries(tmp_path)] == ["Ada", "bob", "cy", "dan"]


def test_an_archive_with_too_many_files_or_names_outside_is_refused(tmp_path):
    deep = [f"{number}/{'d/' * 60}x" for number in range(MOST_FILES // 60)]
    for name, names, said in (
        ("folders", deep, "has more than 10000 files and folders"),
        ("many", [str(number) for number in range(MOST_FILES + 1)], "more than 10000 files"),
        ("outside", ["../../evil.py"], "lies outside"),
        ("backslash", ["..\\evil.py"], "lies outside"),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for one in names:
                archive.writestr(one, "")
        with pytest.raises(UsageError, match=said):
            unpacked(tmp_path / f"{name}.zip", tmp_path)


def test_a_broken_archive_or_file_costs_the_others_nothing(tmp_path):
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("adapters.py", ADAPTERS * 20)
    broken = bytearray(archive.read_bytes())
    broken[45:60] = b"\xff" * 15
    archive.write_bytes(broken)
    with pytest.raises(UsageError, match=r"x\.zip cannot be unpacked: "):
        unpacked(archive, tmp_path / "place")


def broken_lzma(at):
    """A zip archive whose compressed data are damaged: `lzma.LZMAError`, which no other class of errors covers."""
    with zipfile.ZipFile(at, "w", zipfile.ZIP_LZMA) as opened:
        opened.writestr("adapters.py", ADAPTERS * 20)
    broken = bytearray(at.read_bytes())
    broken[60:90] = b"\xff" * 30
    at.write_bytes(broken)


def far_future(at):
    """A tar archive whose file is of a time that no clock has: OverflowError."""
    with tarfile.open(at, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("adapters.py")
        member.pax_headers = {"mtime": "1e30"}
        archive.addfile(member)


def deep(at):
    with zipfile.ZipFile(at, "w") as opened:
        opened.writestr("a/" * 2000 + "adapters.py", ADAPTERS)


def large_header(at):
    """A small archive with a header of 512 MiB, which tarfile reads whole."""
    member = tarfile.TarInfo("adapters.py")
    member.type, member.size = tarfile.XHDTYPE, 2**29
    with gzip.open(at, "wb", compresslevel=1) as opened:
        opened.write(member.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(2**9):
            opened.write(b"\0" * 2**20)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (broken_lzma, r"x\.zip cannot be unpacked: Corrupt input data"),
        (far_future, r"x\.zip cannot be unpacked: timestamp"),
        (deep, rf"x\.zip has more than {MOST_DEPTH} folders in one another"),
        (large_header, r"x\.zip cannot be unpacked: MemoryError"),
    ],
)
def test_whatever_an_archive_does_it_is_refused(tmp_path, make, said):
    make(tmp_path / "x.zip")
    with pytest.raises(UsageError, match=said):
        unpacked(tmp_path / "x.zip", tmp_path / "place")
