"""Products in vector registers, as LLVM instructions.

The loop vectoriser would not keep these sums in registers by itself. :data:`strip` is the inner
part of every matrix product of a network (:func:`product`). :data:`row_products` is used by
:mod:`expost.training._native.linear`. Sums over rows are in
:mod:`expost.training._native.fixed_point`.

Vectors have 64 bytes. LLVM splits them on processors with narrower registers. So the code is
correct on every processor, and fast with AVX2, AVX-512 or similar instructions. Multiplications and
additions may be fused. Ends that do not fill a vector are masked: nothing outside an array is read
or written, except where ``strip`` says so. Bounds are not checked here; the callers must pass
correct shapes.

Tests: ``tests/training/test_vector_products.py``.

``product`` cuts a matrix product into tiles whose sums stay in vector registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from expost.arrays import Array
from expost.training._native.compiled import cgutils, extending, ir, kernel, types

VECTOR = 64  # bytes
TALLEST = 6  # most rows of a tile: the registers of AVX2 hold that many sums
LONG, INT = ir.IntType(64), ir.IntType(32)
_FUSED = ("contract",)
NUMBERS = (types.float32, types.float64)


class Emitter:
    """Emits instructions on vectors of one number type."""

    def __init__(self, context: Any, builder: Any, number: Any, lanes: int | None = None) -> None:
        self.context, self.builder = context, builder
        self.number = context.get_data_type(number)
        self.lanes = lanes or VECTOR // (number.bitwidth // 8)
        self.vector = ir.VectorType(self.number, self.lanes)
        letter = "f" if number in NUMBERS else "i"
        self.suffix = f"v{self.lanes}{letter}{number.bitwidth}"

    def data(self, kind: Any, value: Any) -> Any:
        """Return the pointer to the first number of an array."""
        return self.context.make_array(kind)(self.context, self.builder, value).data

    def everywhere(self, value: Any) -> Any:
        """Return a vector with the number in every lane."""
        blank = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(blank, value, ir.Constant(INT, 0))
        return self.builder.shuffle_vector(
            first, blank, ir.Constant(ir.VectorType(INT, self.lanes), [0] * self.lanes)
        )

    def at(self, array: Any, index: Any) -> Any:
        """Return the pointer to one number."""
        return self.builder.gep(array, [index])

    def load(self, array: Any, index: Any) -> Any:
        """Load a whole vector."""
        return self.builder.load(self._wide(array, index), align=1)

    def store(self, vector: Any, array: Any, index: Any) -> None:
        """Store a whole vector."""
        self.builder.store(vector, self._wide(array, index), align=1)

    def mask(self, used: Any) -> Any:
        """Return a mask that is true in the first ``used`` lanes."""
        lanes = ir.Constant(ir.VectorType(LONG, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", lanes, self.longs(used))

    def longs(self, value: Any) -> Any:
        """Return a vector of as many lanes with the 64-bit integer in every lane."""
        return Emitter(self.context, self.builder, types.int64, self.lanes).everywhere(value)

    def masked_load(self, array: Any, index: Any, mask: Any) -> Any:
        """Load a vector; lanes where the mask is false are zero."""
        pointer = self._wide(array, index)
        kind = ir.FunctionType(self.vector, [pointer.type, INT, mask.type, self.vector])
        function = _declared(self.builder, kind, f"llvm.masked.load.{self.suffix}.p0")
        return self.builder.call(
            function, [pointer, ir.Constant(INT, 1), mask, ir.Constant(self.vector, None)]
        )

    def masked_store(self, vector: Any, array: Any, index: Any, mask: Any) -> None:
        """Store the lanes where the mask is true."""
        pointer = self._wide(array, index)
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, INT, mask.type])
        function = _declared(self.builder, kind, f"llvm.masked.store.{self.suffix}.p0")
        self.builder.call(function, [vector, pointer, ir.Constant(INT, 1), mask])

    def plus_product(self, total: Any, a: Any, b: Any) -> Any:
        """Return total + a·b, which may be fused."""
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=_FUSED), flags=_FUSED)

    def lane_sum(self, vector: Any) -> Any:
        """Return the sum of the lanes: the upper half is added to the lower half repeatedly."""
        width = self.lanes
        while width > 1:
            width //= 2
            lanes = [*range(width, 2 * width), *[0] * (self.lanes - width)]
            upper = self.builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(INT, self.lanes), lanes)
            )
            vector = self.builder.fadd(vector, upper)
        return self.builder.extract_element(vector, ir.Constant(INT, 0))

    def _wide(self, array: Any, index: Any) -> Any:
        """Return the pointer to a vector."""
        return self.builder.bitcast(self.at(array, index), self.vector.as_pointer())


def _declared(builder: Any, kind: Any, name: str) -> Any:
    """Return the declaration of an LLVM intrinsic."""
    utilities: Any = cgutils
    return utilities.get_or_insert_function(builder.module, kind, name)


def loop(
    builder: Any,
    last: Any,
    step: int,
    held: Sequence[Any],
    body: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """Emit ``for index in range(0, last, step): held = body(index, held)``; return ``held``."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index, kept = builder.phi(LONG), [builder.phi(value.type) for value in held]
    builder.cbranch(builder.icmp_signed("<", index, last), inside, after)
    builder.position_at_end(inside)
    changed = body(index, kept)
    further = builder.add(index, ir.Constant(LONG, step))
    for phi, first, again in zip(
        [index, *kept], [ir.Constant(LONG, 0), *held], [further, *changed], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(again, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return kept


def for_height(
    builder: Any, height: Any, heights: Sequence[int], emit: Callable[[int], None]
) -> None:
    """Emit ``emit(h)`` for every h of ``heights``; the one of ``height`` is executed."""
    after = builder.append_basic_block("done")
    switch = builder.switch(height, after)
    for number in heights:
        block = builder.append_basic_block("height")
        switch.add_case(ir.Constant(LONG, number), block)
        builder.position_at_end(block)
        emit(number)
        builder.branch(after)
    builder.position_at_end(after)


def _prefetch(builder: Any, pointer: Any) -> None:
    """Prefetch a cache line into the second level."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, INT, INT, INT])
    flags = [ir.Constant(INT, flag) for flag in (0, 2, 1)]  # for reading, second cache level, data
    builder.call(
        _declared(builder, kind, "llvm.prefetch.p0"), [builder.bitcast(pointer, byte), *flags]
    )


def _prefetch_intrinsic(typing: Any, array: Any, index: Any) -> Any:
    """Return the type and the code generator of :data:`prefetch`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _prefetch(builder, builder.gep(start, [arguments[1]]))
        return context.get_dummy_value()

    return (types.void(array, types.int64), generate) if array.layout == "C" else None


prefetch: Any = extending.intrinsic(_prefetch_intrinsic)
"""prefetch(vector, place): prefetch the cache line of a number; does not change any result."""


def contiguous(number: Any, *arrays: Any) -> bool:
    """Return whether all are contiguous arrays of this number type."""
    return all(
        isinstance(array, types.Array) and array.layout == "C" and array.dtype == number
        for array in arrays
    )


def _strip(
    typing: Any, height: Any, columns: Any, a: Any, a_start: Any, a_step: Any, a_outer: Any,
    a_inner: Any, b: Any, b_start: Any, b_outer: Any, b_inner: Any, outer: Any, inner: Any,
    first: Any, first_start: Any, first_step: Any, first_along: Any, out: Any, out_start: Any,
    out_step: Any
) -> Any:  # fmt: skip
    """Return the type and the code generator of :data:`strip`."""
    if a.dtype not in NUMBERS or not contiguous(a.dtype, a, b, first, out):
        return None  # not defined for these argument types
    long = types.int64
    kind = types.void(
        long, long, a, *[long] * 4, b, *[long] * 5, first, *[long] * 3, out, long, long
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emitter(context, builder, signature.args[2].dtype)
        columns = arguments[1]
        a_start, a_step, a_outer, a_inner = arguments[3:7]
        b_start, b_outer, b_inner, outer, inner = arguments[8:13]
        first_start, first_step, first_along = arguments[14:17]
        a, b, first, out = (
            emit.data(signature.args[index], arguments[index]) for index in (2, 7, 13, 17)
        )

        def strip_of(height: int) -> None:
            def rows_from(start: Any, step: Any) -> list[Any]:
                return [
                    builder.add(start, builder.mul(step, ir.Constant(LONG, row)))
                    for row in range(height)
                ]

            def tile(column: Any, nothing: Sequence[Any]) -> Sequence[Any]:
                mask, b_here = emit.mask(builder.sub(columns, column)), builder.add(b_start, column)

                def over_outer(i: Any, held: Sequence[Any]) -> Sequence[Any]:
                    start = builder.add(a_start, builder.mul(i, a_outer))
                    rows = [emit.at(a, row) for row in rows_from(start, a_step)]
                    vectors = emit.at(b, builder.add(b_here, builder.mul(i, b_outer)))

                    def over_inner(j: Any, sums: Sequence[Any]) -> Sequence[Any]:
                        vector = emit.load(vectors, builder.mul(j, b_inner))
                        along = builder.mul(j, a_inner)
                        numbers = [
                            emit.everywhere(builder.load(emit.at(row, along))) for row in rows
                        ]
                        return [
                            emit.plus_product(total, number, vector)
                            for total, number in zip(sums, numbers, strict=True)
                        ]

                    return loop(builder, inner, 1, held, over_inner)

                first_here = builder.add(first_start, builder.mul(column, first_along))
                starts = [
                    emit.masked_load(first, row, mask) for row in rows_from(first_here, first_step)
                ]
                sums = loop(builder, outer, 1, starts, over_outer)
                targets = rows_from(builder.add(arguments[18], column), arguments[19])
                for total, row in zip(sums, targets, strict=True):
                    emit.masked_store(total, out, row, mask)
                return nothing

            loop(builder, columns, emit.lanes, [], tile)

        for_height(builder, arguments[0], range(1, TALLEST + 1), strip_of)
        return context.get_dummy_value()

    return kind, generate


strip: Any = extending.intrinsic(_strip)
"""strip(height, columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer,
inner, first, first_start, first_step, first_along, out, out_start, out_step):

out[out_start + r·out_step + c] = first[first_start + r·first_step + c']
+ Σ_{i < outer} Σ_{j < inner} a[a_start + r·a_step + i·a_outer + j·a_inner]
· b[b_start + i·b_outer + j·b_inner + c]
for r < height (1 to 6) and c < columns; c' is c if ``first_along`` is 1, and the place in the
vector if it is 0.

``b`` is read in whole vectors, so it needs padding at its end. ``first`` may be ``out``.
"""


class Rows:
    """Some rows of a matrix, their shared vectors, and the next rows, half of them prefetched."""

    def __init__(
        self,
        context: Any,
        builder: Any,
        kinds: Any,
        arguments: Any,
        height: int,
        first_half: bool,
    ) -> None:
        self.builder, self.emit = builder, Emitter(context, builder, kinds[0].dtype)
        matrix = context.make_array(kinds[0])(context, builder, arguments[0])
        self.columns, self._start = builder.extract_value(matrix.shape, 1), matrix.data
        self._rows, self.vector, self.numbers = (
            self.emit.data(kinds[index], arguments[index]) for index in (1, 4, 5)
        )
        self.mine, later = (
            self._pointers(arguments[2], height),
            self._pointers(arguments[3], height),
        )
        self._later = later[: (height + 1) // 2] if first_half else later[(height + 1) // 2 :]
        self.whole = builder.and_(self.columns, ir.Constant(LONG, -self.emit.lanes))
        self.left = builder.sub(self.columns, self.whole)
        self.mask = self.emit.mask(self.left)

    def _pointers(self, first: Any, height: int) -> list[Any]:
        """Return the pointers to the listed rows from index ``first`` on."""
        listed_rows = [self.builder.add(first, ir.Constant(LONG, r)) for r in range(height)]
        listed = [self.builder.load(self.emit.at(self._rows, row)) for row in listed_rows]
        return [self.emit.at(self._start, self.builder.mul(row, self.columns)) for row in listed]

    def number(self, row: int) -> Any:
        """Return the pointer to the number of a row."""
        return self.emit.at(self.numbers, ir.Constant(LONG, row))

    def prefetch(self, column: Any) -> None:
        """Prefetch this column of the next rows."""
        for row in self._later:
            _prefetch(self.builder, self.emit.at(row, column))

    def prefetch_last(self) -> None:
        """Prefetch the last column of the next rows."""
        self.prefetch(self.builder.sub(self.columns, ir.Constant(LONG, 1)))


HEIGHTS = (8, 4, 1)  # of rows that share loads of parameters and sums


def _row_products(
    typing: Any, height: Any, matrix: Any, rows: Any, index: Any, later: Any, weights: Any, out: Any
) -> Any:
    """Return the type and the code generator of :data:`row_products`."""
    same = matrix.dtype in NUMBERS and contiguous(matrix.dtype, matrix, weights)
    if not (same and contiguous(types.int64, rows) and contiguous(types.float64, out)):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def products_of(height: int) -> None:
            rows = Rows(context, builder, signature.args[1:], arguments[1:], height, True)
            emit = rows.emit

            def multiply(parts: Sequence[Any], weights: Any, held: Sequence[Any]) -> list[Any]:
                return [
                    emit.plus_product(total, part, weights)
                    for total, part in zip(held, parts, strict=True)
                ]

            def along(column: Any, held: Sequence[Any]) -> Sequence[Any]:
                rows.prefetch(column)
                parts = [emit.load(row, column) for row in rows.mine]
                return multiply(parts, emit.load(rows.vector, column), held)

            sums: Sequence[Any] = loop(
                builder, rows.whole, emit.lanes, [ir.Constant(emit.vector, None)] * height, along
            )
            parts = [emit.masked_load(row, rows.whole, rows.mask) for row in rows.mine]
            sums = multiply(parts, emit.masked_load(rows.vector, rows.whole, rows.mask), sums)
            for row, total in enumerate(sums):
                number = emit.lane_sum(total)
                double = emit.number == ir.DoubleType()
                wide = number if double else builder.fpext(number, ir.DoubleType())
                builder.store(wide, rows.number(row))
            rows.prefetch_last()

        for_height(builder, arguments[0], HEIGHTS, products_of)
        return context.get_dummy_value()

    long = types.int64
    return types.void(long, matrix, rows, long, long, weights, out), generate


row_products: Any = extending.intrinsic(_row_products)
"""row_products(height, X, rows, place, later, weights, out):

out[r] = Σ_c X[rows[place + r], c]·weights[c] for r < height (8, 4 or 1), summed in the precision of
X in as many parts as a vector has lanes. The first half of the rows from ``later`` on is
prefetched."""


@kernel
def rows_together(left: int) -> int:
    """Return how many rows are processed together, which share loads of parameters and sums."""
    return 8 if left >= 8 else (4 if left >= 4 else 1)


@kernel
def product(rows: int, columns: int, a: Array, a_start: int, a_step: int, a_outer: int,
            a_inner: int, b: Array, b_start: int, b_outer: int, b_inner: int, outer: int,
            inner: int, first: Array, first_step: int, first_along: int,
            out: Array, out_start: int, out_step: int) -> None:  # fmt: skip
    """Compute out[r, c] = first[r, c] + Σ_{i, j} a[r, (i, j)]·b[(i, j), c].

    Here r < ``rows`` and c < ``columns``, with the strides as given. The columns of ``b`` and
    ``out`` are adjacent. The columns of ``first`` are ``first_along`` apart: 1, or 0 with a vector
    of zeros. The rows are cut into strips of nearly equal height.
    """
    strips, row = -(-rows // TALLEST), 0
    for number in range(strips):
        height = rows // strips + (1 if number < rows % strips else 0)
        strip(height, columns, a, a_start + row * a_step, a_step, a_outer, a_inner,
              b, b_start, b_outer, b_inner, outer, inner,
              first, row * first_step, first_step, first_along,
              out, out_start + row * out_step, out_step)  # fmt: skip
        row += height
