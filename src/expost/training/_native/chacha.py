"""The ChaCha20 block function on vectors, as LLVM instructions.

Sixteen blocks are computed side by side, and the state stays in registers. A compiled loop over the
lanes would access memory after every quarter round and be four times slower. LLVM splits the
vectors on processors with narrower registers.
Tests: ``tests/training/test_keystream.py`` (test vectors of RFC 8439).
"""

from __future__ import annotations

from typing import Any

from expost.training._native.compiled import cgutils, extending, ir, types

LANES = 16
_ROUNDS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_WORDS, _LONGS = ir.VectorType(_WORD, LANES), ir.VectorType(_LONG, LANES)


def _blocks(typing: Any, state: Any, lanes: Any) -> Any:
    """Return the type and the code generator of :data:`blocks`."""
    utilities: Any = cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        rotate = utilities.get_or_insert_function(
            builder.module, ir.FunctionType(_WORDS, [_WORDS] * 3), f"llvm.fshl.v{LANES}i32"
        )

        def place(word: int) -> Any:
            return builder.gep(source, [ir.Constant(_LONG, word)])

        def quarter_round(x: list[Any], a: int, b: int, c: int, d: int) -> None:
            """Apply the quarter round of RFC 8439 §2.1."""
            for first, second, third, bits in (
                (a, b, d, 16),
                (c, d, b, 12),
                (a, b, d, 8),
                (c, d, b, 7),
            ):
                x[first] = builder.add(x[first], x[second])
                mixed = builder.xor(x[third], x[first])
                x[third] = builder.call(rotate, [mixed, mixed, ir.Constant(_WORDS, [bits] * LANES)])

        words = [builder.load(place(word)) for word in range(16)]
        counter = builder.or_(
            builder.zext(words[12], _LONG),
            builder.shl(builder.zext(words[13], _LONG), ir.Constant(_LONG, 32)),
        )
        counters = builder.add(
            _everywhere(builder, counter, _LONGS), ir.Constant(_LONGS, list(range(LANES)))
        )
        start = [_everywhere(builder, word, _WORDS) for word in words]
        start[12] = builder.trunc(counters, _WORDS)
        start[13] = builder.trunc(builder.lshr(counters, ir.Constant(_LONGS, [32] * LANES)), _WORDS)
        before, rounds, after = (
            builder.block,
            builder.append_basic_block("rounds"),
            builder.append_basic_block("after"),
        )
        builder.branch(rounds)
        builder.position_at_end(rounds)
        turn, held = builder.phi(_WORD), [builder.phi(_WORDS) for _ in range(16)]
        x = list(held)
        for places in _ROUNDS:
            quarter_round(x, *places)
        further = builder.add(turn, ir.Constant(_WORD, 1))
        for phi, first, again in zip(
            [turn, *held], [ir.Constant(_WORD, 0), *start], [further, *x], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(again, rounds)
        builder.cbranch(builder.icmp_unsigned("<", further, ir.Constant(_WORD, 10)), rounds, after)
        builder.position_at_end(after)
        for word in range(16):
            row = builder.bitcast(
                builder.gep(target, [ir.Constant(_LONG, word * LANES)]), _WORDS.as_pointer()
            )
            builder.store(builder.add(x[word], start[word]), row, align=4)
        moved = builder.add(counter, ir.Constant(_LONG, LANES))
        builder.store(builder.trunc(moved, _WORD), place(12))
        builder.store(builder.trunc(builder.lshr(moved, ir.Constant(_LONG, 32)), _WORD), place(13))
        return context.get_dummy_value()

    return types.void(state, lanes), generate


def _everywhere(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector with the value in every lane."""
    blank = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(blank, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, blank, ir.Constant(_WORDS, [0] * LANES))


blocks: Any = extending.intrinsic(_blocks)
"""blocks(state, lanes): write the next LANES blocks, word by word, to ``lanes`` (16 × LANES).

The 64-bit counter (words 12 and 13) is advanced."""
