"""The checkpoints in a job's folder: publishing, listing and loading them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from dask_elastic.checkpoint import manifest_file
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import is_superseded, recorded_bases
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError, CheckpointSuperseded, NoCheckpoint

logger = logging.getLogger("dask_elastic.checkpoint")

_FOLDER = "manifests"


class Catalog:
    """The checkpoints in a folder.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://catalog")
    >>> catalog = Catalog(folder)
    >>> topology = folder.write("topology/1.pickle", [b"pickled"])
    >>> catalog.next_number()
    1
    >>> catalog.publish(Manifest("delays", 1, 1, 0.0, 0.5, topology))
    >>> catalog.load().number, catalog.next_number()
    (1, 2)
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self.folder = folder

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest of a checkpoint whose files are all written; the checkpoint is complete then.

        Parameters
        ----------
        manifest : Manifest
            The manifest.

        Raises
        ------
        CheckpointError
            When it cannot be written, or another checkpoint of that number exists.

        Notes
        -----
        Storage may report a failure although it has written the file, for example if its answer was lost; a library
        that repeats the request then finds that the file exists. So after an error the manifest is read back.
        """
        path, contents = manifest_file.path_of(manifest.number), manifest_file.to_bytes(manifest)
        try:
            self.folder.write(path, [contents])
        except CheckpointError:
            if not self._has(path, contents):
                raise

    def _has(self, path: str, contents: bytes) -> bool:
        try:
            found = self.folder.read_unchecked(path).to_pybytes()
            self.make_durable()
            return bool(found == contents)
        except (FileNotFoundError, CheckpointError):
            return False

    def make_durable(self) -> None:
        """Make the names of all manifests durable; called before sinks commit what one that was only read covers.

        Raises
        ------
        CheckpointError
            When the storage fails.
        """
        self.folder.make_durable(_FOLDER)

    def numbers(self) -> list[int]:
        """Return the numbers of all manifests, damaged ones included, newest first.

        Returns
        -------
        list of int
            Numbers of checkpoints.
        """
        names = (name.removesuffix(".json") for name in self.folder.sizes(_FOLDER) if name.endswith(".json"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def next_number(self) -> int:
        """Return a number above those of all checkpoints, given-up ones included.

        Returns
        -------
        int
            The number for the first checkpoint of a new generation.
        """
        begun = [int(name) for name in self.folder.folders("state") if name.isdecimal()]
        return max([0, *self.numbers(), *begun]) + 1

    def manifest(self, number: int, verify: bool = False) -> Manifest:
        """Return the manifest of one checkpoint, after checking that its files exist with the right sizes.

        Parameters
        ----------
        number : int
            The number of the checkpoint.
        verify : bool, optional
            Whether to read all files and compare their checksums too.

        Returns
        -------
        Manifest
            The manifest.

        Raises
        ------
        CheckpointCorrupt
            When the manifest or a file is missing or damaged.
        CheckpointSuperseded
            When a later generation of the job began from an earlier checkpoint.
        CheckpointError
            When a newer version of dask_elastic wrote it.
        """
        path = manifest_file.path_of(number)
        try:
            contents = self.folder.read_unchecked(path).to_pybytes()
        except FileNotFoundError:
            raise CheckpointCorrupt(self.folder.where(path), "a manifest", "no such file") from None
        manifest = manifest_file.from_bytes(contents, self.folder.where(path), number)
        if is_superseded(recorded_bases(self.folder), manifest.generation, number):
            raise CheckpointSuperseded(
                f"{self.folder.where(path)}: a later run of the job began from an earlier checkpoint, so sinks may "
                "have deleted what this one needs. Use a newer checkpoint, or the one from which the later run began."
            )
        self._check_sizes(manifest.files)
        if verify:
            for file in manifest.files:
                self.folder.read(file)
        return manifest

    def complete(self, verify: bool = False) -> Iterator[Manifest]:
        """Yield the checkpoints that can be restored, newest first; log a warning for each damaged one.

        Parameters
        ----------
        verify : bool, optional
            Whether to read all files and compare their checksums too.

        Yields
        ------
        Manifest
            The manifests.

        Raises
        ------
        CheckpointError
            When a newer version of dask_elastic wrote one.
        """
        for number in self.numbers():
            try:
                yield self.manifest(number, verify)
            except (CheckpointCorrupt, CheckpointSuperseded) as error:
                self._log_skipped(number, error)

    def newest_from(self, known: int) -> int:
        """Return the number of the newest checkpoint that can be restored, at least one that is known to be complete.

        For a restart: the manifest of a checkpoint that counts as given up may have been written nevertheless.

        Parameters
        ----------
        known : int
            The newest checkpoint that is known to be complete; 0 for none. It is not checked.

        Returns
        -------
        int
            Its number; 0 if there is none.

        Raises
        ------
        CheckpointError
            When the storage fails, or a newer version of dask_elastic wrote a checkpoint.
        """
        for number in self.numbers():
            if number <= known:
                break
            try:
                found = self.manifest(number).number
            except (CheckpointCorrupt, CheckpointSuperseded) as error:
                self._log_skipped(number, error)
                continue
            self.make_durable()
            return found
        return known

    def load(self, number: int | None = None, below: int | None = None, verify: bool = False) -> Manifest:
        """Return the newest checkpoint that is not damaged, or one by its number.

        Parameters
        ----------
        number : int, optional
            The number of the checkpoint; the newest by default.
        below : int, optional
            Only checkpoints below this number: for the next attempt, after a file of that one turned out damaged.
        verify : bool, optional
            Whether to read all files and compare their checksums. By default only sizes are compared here, and
            checksums when the files are read.

        Returns
        -------
        Manifest
            The manifest.

        Raises
        ------
        NoCheckpoint
            When the folder has no checkpoint of that number, or none at all.
        CheckpointCorrupt, CheckpointSuperseded
            When none of them can be used; names the newest one's first damaged file.
        CheckpointError
            When a newer version of dask_elastic wrote it.
        """
        numbers = self.numbers()
        if number is not None:
            wanted = [found for found in numbers if found == number]
        else:
            wanted = [found for found in numbers if below is None or found < below]
        if not wanted:
            raise self._none(number, below, numbers)
        damages: list[CheckpointCorrupt | CheckpointSuperseded] = []
        for candidate in wanted:
            try:
                return self.manifest(candidate, verify)
            except (CheckpointCorrupt, CheckpointSuperseded) as error:
                self._log_skipped(candidate, error)
                damages.append(error)
        raise damages[0]

    def _log_skipped(self, number: int, error: CheckpointCorrupt | CheckpointSuperseded) -> None:
        level = logging.WARNING if isinstance(error, CheckpointCorrupt) else logging.INFO
        logger.log(level, "checkpoint %s of %s is skipped: %s", number, self.folder.shown, error)

    def _none(self, number: int | None, below: int | None, numbers: list[int]) -> CheckpointError:
        url = self.folder.shown
        if not numbers:
            return NoCheckpoint(f"{url} has no complete checkpoint. Check the URL: it is that of the job's folder.")
        what = f"checkpoint {number}" if number is not None else f"checkpoint below {below}"
        return NoCheckpoint(f"{url} has no {what}; it has {', '.join(map(str, numbers[:10]))}. Use one of these.")

    def _check_sizes(self, files: Iterable[FileRef]) -> None:
        listed: dict[str, dict[str, int]] = {}
        for file in files:
            parent, _, name = file.path.rpartition("/")
            if parent not in listed:
                listed[parent] = self.folder.sizes(parent)
            file.check_size(self.folder.where(file.path), listed[parent].get(name))
