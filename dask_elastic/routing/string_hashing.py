"""Arithmetic of hashing: mixing 64-bit words, and folding byte strings into words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# Temporaries of this many words fit into the second-level cache and stay below 128 KiB, from which size on the C
# library returns memory to the system at once; beyond either limit NumPy is up to four times slower.
BLOCK = 15 * 1024
# Loops that allocate nothing per block are as fast with larger blocks, and release the GIL less often.
MIXED = 64 * 1024
# A string of up to this many bytes fits into one word together with its length.
SHORT = 7

_LANE = 8
_LOOPED_LANES = 8
_LANE_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_LANE + 1)], dtype=np.uint64)
_LENGTH_SHIFT = np.uint64(56)
_HALF = np.uint64(32)
_ODD = np.uint64(1)
_COMBINE = np.uint64(0x9FB21C651E98DF25)


# Families are keys of tables, which a hash of the identity makes fast.
@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The constants of one hash function out of several independent ones.

    Parameters
    ----------
    offset : numpy.uint64
        Added to each word first, so that the word 0 does not hash to 0.
    shifts, multipliers : tuple of numpy.uint64
        The finaliser: x ^= x >> s0; x *= m0; x ^= x >> s1; x *= m1; x ^= x >> s2. It is a bijection.
    lane : numpy.uint64
        The odd multiplier of the lanes of long strings.
    null : numpy.uint64
        The hash of a null.
    primes : tuple of int
        Two primes below 2**32; decimals are hashed by their residues.

    Notes
    -----
    The constants are part of the checkpoint format: changing one makes all stored keyed state unreadable.
    """

    offset: np.uint64
    shifts: tuple[np.uint64, np.uint64, np.uint64]
    multipliers: tuple[np.uint64, np.uint64]
    lane: np.uint64
    null: np.uint64
    primes: tuple[int, int]

    def mix(self, words: Words) -> Words:
        """Hash each word by itself.

        Parameters
        ----------
        words : numpy.ndarray of uint64
            The words to hash; not modified.

        Returns
        -------
        numpy.ndarray of uint64
            A new array; hashes are equal if and only if the words are.

        Examples
        --------
        >>> HASH.mix(np.array([0], dtype=np.uint64)).tolist()
        [16294208416658607535]
        """
        mixed = np.empty(len(words), dtype=np.uint64)
        scratch = np.empty(min(len(words), MIXED), dtype=np.uint64)
        for start in range(0, len(words), MIXED):
            block = mixed[start : start + MIXED]
            shifted = scratch[: len(block)]
            np.add(words[start : start + MIXED], self.offset, out=block)
            for shift, multiplier in zip(self.shifts, self.multipliers, strict=False):
                np.right_shift(block, shift, out=shifted)
                np.bitwise_xor(block, shifted, out=block)
                np.multiply(block, multiplier, out=block)
            np.right_shift(block, self.shifts[2], out=shifted)
            np.bitwise_xor(block, shifted, out=block)
        return mixed

    def lane_keys(self, lanes: NDArray[np.int64]) -> Words:
        """Return a pseudorandom word for each position of a lane in a string.

        Parameters
        ----------
        lanes : numpy.ndarray of int64
            Positions, counted in lanes of eight bytes.

        Returns
        -------
        numpy.ndarray of uint64
            One word per position.
        """
        return self.mix(lanes.view(np.uint64) + self.lane)

    def fold(self, lanes: Words, keys: Words | np.uint64) -> Words:
        """Map the lanes of strings to terms whose sum over a string represents the string.

        Parameters
        ----------
        lanes : numpy.ndarray of uint64
            Eight bytes of a string each.
        keys : numpy.ndarray of uint64 or numpy.uint64
            The `lane_keys` of their positions.

        Returns
        -------
        numpy.ndarray of uint64
            A new array of terms.
        """
        # The second multiplier depends on the position; otherwise swapping two lanes could keep the sum.
        terms = lanes ^ keys
        terms *= self.lane
        terms ^= terms >> _HALF
        terms *= keys | _ODD
        return terms


def _family(offset: int, shifts: tuple[int, ...], multipliers: tuple[int, ...], rest: tuple[int, ...]) -> Family:
    first, second, third = (np.uint64(shift) for shift in shifts)
    before, after = (np.uint64(multiplier) for multiplier in multipliers)
    lane, null, prime, other = rest
    return Family(
        np.uint64(offset), (first, second, third), (before, after), np.uint64(lane), np.uint64(null), (prime, other)
    )


# The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
HASH = _family(
    0x9E3779B97F4A7C15,
    (30, 27, 31),
    (0xBF58476D1CE4E5B9, 0x94D049BB133111EB),
    (0xD6E8FEB86659FD93, 0x6C62272E07BB0142, 4294967291, 4294967279),
)
# The finaliser of MurmurHash3 (Appleby, 2011).
CHECK = _family(
    0xC2B2AE3D27D4EB4F,
    (33, 33, 33),
    (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53),
    (0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 4294967231, 4294967197),
)
_LOOPED_KEYS = {family: family.lane_keys(np.arange(_LOOPED_LANES, dtype=np.int64)) for family in (HASH, CHECK)}


def combine(left: Words, right: Words) -> Words:
    """Combine the hashes of two columns; the order of the columns matters.

    Parameters
    ----------
    left, right : numpy.ndarray of uint64
        Mixed hashes; `left` is overwritten.

    Returns
    -------
    numpy.ndarray of uint64
        `left`, which then holds the hashes of the pairs.

    Examples
    --------
    >>> one, two = (HASH.mix(np.array([word], dtype=np.uint64)) for word in (1, 2))
    >>> bool(combine(one.copy(), two) == combine(two.copy(), one))
    False
    """
    scratch = np.empty(min(len(left), BLOCK), dtype=np.uint64)
    for start in range(0, len(left), BLOCK):
        block = left[start : start + BLOCK]
        shifted = scratch[: len(block)]
        np.right_shift(block, _HALF, out=shifted)
        np.bitwise_xor(block, shifted, out=block)
        np.multiply(block, _COMBINE, out=block)
        np.add(block, right[start : start + BLOCK], out=block)
    return left


def string_words(data: NDArray[np.uint8], offsets: NDArray[np.signedinteger], family: Family) -> Words:
    """Fold each byte string into one word; `Family.mix` turns the word into a hash.

    Parameters
    ----------
    data : numpy.ndarray of uint8
        The bytes of all strings.
    offsets : numpy.ndarray of int32 or int64
        The start of each string in `data`, and one more entry: the end of the last string.
    family : Family
        The hash function.

    Returns
    -------
    numpy.ndarray of uint64
        One word per string. Distinct strings of up to `SHORT` bytes have distinct words, the same in all families.

    Examples
    --------
    >>> data = np.frombuffer(b"abcd", dtype=np.uint8)
    >>> [hex(word) for word in string_words(data, np.array([0, 1, 4]), HASH)]
    ['0x100000000000061', '0x300000000646362']

    Notes
    -----
    A string is read in lanes of eight bytes; the last lane overlaps the previous one if the length is not a multiple
    of eight. The word is the sum of the first lane and one term per further lane, so that the lanes of all strings can
    be processed together even if their lengths differ.
    """
    count = len(offsets) - 1
    words = np.empty(count, dtype=np.uint64)
    if count == 0:
        return words
    origin, end = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(end - origin + _LANE, dtype=np.uint8)
    padded[: end - origin] = data[origin:end]
    # Entry i is the eight bytes from byte i on, so that a lane at any offset is one load.
    windows: Words = np.ndarray((end - origin + 1,), dtype=np.dtype("<u8"), buffer=padded.data, strides=(1,))
    for start in range(0, count, BLOCK):
        block = offsets[start : start + BLOCK + 1]
        begins, lengths = block[:-1] - origin, np.diff(block)
        shortest, longest = int(lengths.min()), int(lengths.max())
        if 0 < shortest == longest <= _LANE * _LOOPED_LANES:
            words[start : start + BLOCK] = _equal_words(windows, int(begins[0]), len(begins), longest, family)
        else:
            words[start : start + BLOCK] = _block_words(windows, begins, lengths, family)
    return words


def string_checks(
    data: NDArray[np.uint8], begins: NDArray[np.signedinteger], lengths: NDArray[np.signedinteger]
) -> Words | None:
    """Hash byte strings a second time; strings of up to `SHORT` bytes are identified by their first hash.

    Parameters
    ----------
    data : numpy.ndarray of uint8
        The bytes of all strings.
    begins, lengths : numpy.ndarray of int32 or int64
        The start of each string in `data`, and its length.

    Returns
    -------
    numpy.ndarray of uint64 or None
        The checks, 0 for each short string; None if all strings are short.

    Examples
    --------
    >>> data = np.frombuffer(b"N10156 N10156-2013", dtype=np.uint8)
    >>> string_checks(data, np.array([0, 7]), np.array([6, 11])).tolist()[0]
    0
    """
    rows = np.flatnonzero(lengths > SHORT)
    if len(rows) == 0:
        return None
    checks = np.zeros(len(lengths), dtype=np.uint64)
    # All lanes of strings that are not short lie within the strings.
    windows: Words = np.ndarray((len(data) - SHORT,), dtype=np.dtype("<u8"), buffer=data.data, strides=(1,))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        checks[block] = CHECK.mix(_block_words(windows, begins.take(block), lengths.take(block), CHECK))
    return checks


def _block_words(
    windows: Words, begins: NDArray[np.signedinteger], lengths: NDArray[np.signedinteger], family: Family
) -> Words:
    words: Words = windows[begins]
    if int(lengths.min()) < _LANE:
        words &= _LANE_MASKS.take(lengths, mode="clip")
    tags = lengths.astype(np.uint64)
    tags <<= _LENGTH_SHIFT
    words += tags
    if int(lengths.max()) > _LANE:
        rows = np.flatnonzero(lengths > _LANE)
        _add_lanes(words, rows, windows, begins[rows], lengths[rows], family)
    return words


def _equal_words(windows: Words, begin: int, count: int, length: int, family: Family) -> Words:
    """Fold contiguous strings of one length; their lanes are slices, so rows need no indexing."""
    span = length * (count - 1) + 1
    words: Words = windows[begin : begin + span : length] & _LANE_MASKS[min(length, _LANE)]
    words += np.uint64(length) << _LENGTH_SHIFT
    if length > _LANE:
        words += np.multiply(np.uint64(length), family.lane, dtype=np.uint64)
    keys = _LOOPED_KEYS[family]
    for lane in range(1, -(-length // _LANE)):
        at = begin + min(_LANE * lane, length - _LANE)
        words += family.fold(windows[at : at + span : length], keys[lane])
    return words


def _add_lanes(
    words: Words,
    rows: NDArray[np.intp],
    windows: Words,
    begins: NDArray[np.signedinteger],
    lengths: NDArray[np.signedinteger],
    family: Family,
) -> None:
    """Add the terms of all lanes but the first to `words[rows]`."""
    words[rows] += lengths.astype(np.uint64) * family.lane
    keys = _LOOPED_KEYS[family]
    for lane in range(1, _LOOPED_LANES):
        terms = family.fold(windows[begins + np.minimum(_LANE * lane, lengths - _LANE)], keys[lane])
        words[rows] += terms
        longer = np.flatnonzero(lengths > _LANE * (lane + 1))
        if len(longer) == 0:
            return
        if len(longer) < len(rows):
            rows, begins, lengths = rows[longer], begins[longer], lengths[longer]
    _add_far_lanes(words, rows, windows, begins.astype(np.int64), lengths.astype(np.int64), family)


def _add_far_lanes(
    words: Words,
    rows: NDArray[np.intp],
    windows: Words,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    family: Family,
) -> None:
    """Add the terms of the lanes from `_LOOPED_LANES` on, for all strings together instead of one pass per lane."""
    ends = np.cumsum(-(-lengths // _LANE) - _LOOPED_LANES)
    starts = np.concatenate(([0], ends[:-1]))
    for low in range(0, int(ends[-1]), BLOCK):
        high = min(low + BLOCK, int(ends[-1]))
        first, last = np.searchsorted(ends, [low, high - 1], side="right").tolist()
        part = slice(first, last + 1)
        cuts = np.maximum(starts[part], low)
        string = np.repeat(np.arange(first, last + 1), np.minimum(ends[part], high) - cuts)
        lane = np.arange(low, high) - starts[string] + _LOOPED_LANES
        positions = begins[string] + np.minimum(lane * _LANE, lengths[string] - _LANE)
        terms = family.fold(windows[positions], family.lane_keys(lane))
        words[rows[part]] += np.add.reduceat(terms, cuts - low)
