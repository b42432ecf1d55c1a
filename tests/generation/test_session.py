"""Sessions: positions, errors that change nothing, and reuse of a prefix."""

import threading

import numpy as np
import pytest

from rml.engine.session import forward_together
from rml.errors import ArgumentError, Cancelled, ClosedError, ContextOverflow


def sum_so_far(tokens):
    return sum(tokens) % 300


def test_forward_continues_at_the_position(make_session):
    session, decoder = make_session(sum_so_far)

    assert session.forward([1, 2]).argmax() == 3
    assert session.forward(np.array([4])).argmax() == 7
    assert (session.position, session.tokens) == (3, [1, 2, 4])
    rows = session.forward((5, 6), all_logits=True)
    assert rows.shape == (2, 300)
    assert rows.argmax(axis=1).tolist() == [12, 18]
    assert decoder.calls == [[1, 2], [4], [5, 6]]


def test_forward_into_an_array(make_session):
    session, _ = make_session(sum_so_far)
    out = np.empty(300, np.float32)

    assert session.forward([1], out=out) is out
    assert out.argmax() == 1


def test_step_is_forward_of_one_token(make_session):
    session, _ = make_session(sum_so_far, n_ctx=3)

    assert session.step(2).argmax() == 2
    assert session.step(np.int32(5)).argmax() == 7
    assert session.tokens == [2, 5]
    assert all(type(token) is int for token in session.tokens)
    session.cancel()
    with pytest.raises(Cancelled):
        session.step(1)
    with pytest.raises(ArgumentError):
        session.step(-1)
    session.step(1)
    with pytest.raises(ContextOverflow):
        session.step(1)
    session.close()
    with pytest.raises(ClosedError):
        session.step(1)


@pytest.mark.parametrize("bad", [[], [-1], [300], [1.5], ["a"]])
def test_bad_tokens_change_nothing(make_session, bad):
    session, decoder = make_session(sum_so_far)
    session.forward([1])

    with pytest.raises(ArgumentError):
        session.forward(bad)

    assert (session.position, decoder.told(session)) == (1, [1])


def test_overflow_changes_nothing(make_session):
    session, decoder = make_session(sum_so_far, n_ctx=4)
    session.forward([1, 2, 3])

    with pytest.raises(ContextOverflow) as caught:
        session.forward([4, 5])

    assert (caught.value.needed, caught.value.limit) == (5, 4)
    assert decoder.told(session) == session.tokens == [1, 2, 3]
    assert session.forward([4]).argmax() == 10


def test_a_step_that_was_interrupted_after_its_end_is_undone(make_session, monkeypatch):
    """Ctrl-C comes when the tokens have been counted in, and before the caller knows."""
    session, decoder = make_session(sum_so_far)
    session.forward([1])
    engine = session._sessions.engine
    finish = engine.finish

    def interrupted(work):
        finish(work)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.forward([99, 100])

    assert decoder.told(session) == session.tokens == [1]
    assert session.forward([2]).argmax() == 3
    assert decoder.told(session) == session.tokens == [1, 2]


def test_truncate(make_session):
    session, decoder = make_session(sum_so_far)
    session.forward([1, 2, 3])

    session.truncate(np.int64(2))
    session.truncate(1.0)

    assert (session.position, decoder.told(session)) == (1, [1])
    assert session.forward([5]).argmax() == 6
    for bad in (-1, 3, 1.5, None, True, "1"):
        with pytest.raises(ArgumentError, match="from 0 to 2"):
            session.truncate(bad)
    assert session.position == 2


@pytest.mark.parametrize(
    ("before", "ids", "kept"),
    [
        ([], [1, 2], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 3], 2),  # the last token is evaluated again: its logits are needed
        ([1, 2, 3], [1], 0),
        ([1, 2, 3], [1, 9, 3, 4], 1),
        ([1, 2, 3], [9, 2, 3], 0),
    ],
)
def test_keep_prefix(make_session, before, ids, kept):
    session, decoder = make_session(sum_so_far)
    if before:
        session.forward(before)

    assert session.keep_prefix(ids) == kept
    assert decoder.told(session) == session.tokens == ids[:kept]


def test_a_closed_session_says_so(make_session):
    session, decoder = make_session(sum_so_far)
    with session:
        session.forward([1])
    session.close()

    assert session.closed
    assert decoder.n_pages_used == 0
    for use in (
        lambda: session.forward([1]),
        lambda: session.truncate(0),
        lambda: session.keep_prefix([1]),
        session.__enter__,
    ):
        with pytest.raises(ClosedError):
            use()


# ---- cancel ----


def test_cancel_ends_the_step_under_way_and_only_that(make_session):
    def script(tokens):
        if tokens[-1] == 99:
            session.cancel()
            session.cancel()
        return sum(tokens) % 300

    session, decoder = make_session(script)
    session.forward([1, 2])

    with pytest.raises(Cancelled):
        session.forward([3, 99, 4])

    assert decoder.told(session) == session.tokens == [1, 2]
    assert session.forward([5]).argmax() == 8


def test_cancel_between_steps_ends_the_next_one(make_session):
    session, decoder = make_session(sum_so_far)
    session.forward([1])
    session.cancel()

    with pytest.raises(Cancelled):
        session.forward([2])

    assert decoder.calls == [[1]]
    assert session.forward([2]).argmax() == 3


def test_a_cancel_can_be_taken_back(make_session):
    session, _ = make_session(sum_so_far)
    session.cancel()
    session.uncancel()

    assert session.forward([2]).argmax() == 2


def test_close_during_a_step_leaves_the_cache_to_it(make_session):
    """Kernels would otherwise read a page table whose pages are gone."""

    def script(tokens):
        session.close()
        assert session.closed
        assert decoder.n_pages_used == 1
        return 0

    session, decoder = make_session(script)

    with pytest.raises(ClosedError, match="closed during a step"):
        session.forward([1, 2])

    assert decoder.n_pages_used == 0
    session.cancel()  # of a closed session does nothing
    session.uncancel()


def test_a_second_thread_is_refused_at_its_start(make_session):
    """And the first one goes on as if nothing had happened."""
    said = []

    def script(tokens):
        def intrude():
            for use in (lambda: session.forward([7]), lambda: session.truncate(0), session.fork):
                with pytest.raises(ArgumentError, match="in use by another thread; fork") as error:
                    use()
                said.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        return sum(tokens) % 300

    session, decoder = make_session(script)
    assert session.forward([1, 2]).argmax() == 3
    assert len(said) == 6
    assert decoder.told(session) == session.tokens == [1, 2]


def test_sessions_of_several_threads_share_steps(make_pool):
    pool, decoder = make_pool(sum_so_far)
    sessions = [pool.open() for _ in range(8)]
    barrier = threading.Barrier(8)
    results = [[] for _ in sessions]

    def work(i):
        barrier.wait()
        for n in range(20):
            results[i].append(sessions[i].forward([i, n]).argmax())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for i, session in enumerate(sessions):
        tokens = [x for n in range(20) for x in (i, n)]
        assert session.tokens == decoder.told(session) == tokens
        assert results[i] == [sum(tokens[: 2 * n + 2]) % 300 for n in range(20)]


def test_all_sessions_are_closed_with_the_model(make_pool):
    pool, decoder = make_pool(sum_so_far)
    mine = pool.open()
    mine.forward([1])
    with pool.open() as lent:
        lent.forward([2])
        assert (pool.n_open, decoder.n_pages_used) == (2, 2)
    assert (pool.n_open, decoder.n_pages_used) == (1, 1)

    pool.close()
    pool.close()

    assert pool.closed
    assert (pool.n_open, decoder.n_pages_used) == (0, 0)
    for use in (pool.open, lambda: mine.forward([1])):
        with pytest.raises(ClosedError):
            use()


def test_a_model_knows_its_own_sessions(make_pool):
    pool, _ = make_pool(sum_so_far)
    other, _ = make_pool(sum_so_far)
    session = pool.open()

    assert pool.owns(session)
    assert not other.owns(session)
    assert pool.owns(session.fork())


def test_several_sessions_at_once(make_pool):
    pool, decoder = make_pool(sum_so_far)
    sessions = [pool.open() for _ in range(3)]
    out = np.empty((3, 300), np.float32)

    assert forward_together(sessions, [[1, 2], [4], [5, 6, 7]], out) is out
    assert out.argmax(axis=1).tolist() == [3, 4, 18]
    assert [session.tokens for session in sessions] == [[1, 2], [4], [5, 6, 7]]
    assert decoder.calls == [[1, 2], [4], [5, 6, 7]]  # of one step
    assert forward_together(sessions[1:], np.array([[1], [2]])).argmax(axis=1).tolist() == [5, 20]


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([[1], [2]], ArgumentError),
        ([[1], [300], [2]], ArgumentError),
        ([[1], [2], []], ArgumentError),
        ([[1], [2], [3] * 64], ContextOverflow),
    ],
)
def test_what_is_wrong_with_one_session_changes_none(make_pool, ids, error):
    pool, _ = make_pool(sum_so_far)
    sessions = [pool.open() for _ in range(3)]
    forward_together(sessions, [[7]] * 3)

    with pytest.raises(error):
        forward_together(sessions, ids)
    with pytest.raises(ArgumentError):
        forward_together([], [])
    with pytest.raises(ArgumentError):
        forward_together([sessions[0], sessions[0]], [[1], [2]])
    with pytest.raises(ArgumentError):
        forward_together([sessions[0], make_pool(sum_so_far)[0].open()], [[1], [2]])
    sessions[2].cancel()
    with pytest.raises(Cancelled):
        forward_together(sessions, [[1], [2], [3]])
    assert [session.tokens for session in sessions] == [[7]] * 3
    assert forward_together(sessions, [[1], [2], [3]]).argmax(axis=1).tolist() == [8, 9, 10]
