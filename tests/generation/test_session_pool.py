"""Sessions that wait between calls: empty, few, small, and closed with the model."""

import threading

import pytest

from rml.errors import ClosedError
from rml.generation import session_pool


def test_a_session_is_used_again_without_its_text(make_pool):
    pool, decoder = make_pool(sum)
    with pool.lend() as first:
        first.forward([1, 2, 3])
    with pool.lend() as second:
        assert second is first
        assert (second.position, second.tokens) == (0, [])
        assert decoder.caches[0].tokens == []
        assert second.forward([4]).argmax() == 4
    assert (len(decoder.caches), pool.n_idle, pool.n_open) == (1, 1, 1)


def test_two_at_a_time_never_share(make_pool):
    pool, decoder = make_pool(sum)
    with pool.lend() as first, pool.lend() as second:
        assert first is not second
    assert (len(decoder.caches), pool.n_idle) == (2, 2)


def test_few_wait(make_pool):
    pool, decoder = make_pool(sum)
    lent = [pool.borrow() for _ in range(9)]
    for session in lent:
        pool.give_back(session)

    assert pool.n_idle == pool.n_open == session_pool._MOST_IDLE
    assert sum(cache.closed for cache in decoder.caches) == 9 - session_pool._MOST_IDLE


def test_large_ones_do_not_wait(make_pool, monkeypatch):
    monkeypatch.setattr(session_pool, "_MOST_BYTES", 5)
    pool, _ = make_pool(sum)
    for n, waits in ((5, 1), (6, 0)):
        with pool.lend() as session:
            session.forward([1] * n)
        assert pool.n_idle == pool.n_open == waits


def test_after_an_error_a_session_is_not_used_again(make_pool):
    pool, decoder = make_pool(sum)

    with pytest.raises(KeyboardInterrupt), pool.lend():
        raise KeyboardInterrupt

    assert (pool.n_idle, pool.n_open, decoder.caches[0].closed) == (0, 0, True)


def test_close(make_pool):
    pool, decoder = make_pool(sum)
    mine, lent = pool.open(), pool.borrow()
    with pool.lend():
        pass
    assert (pool.n_idle, pool.n_open) == (1, 3)

    pool.close()
    pool.close()

    assert pool.closed
    assert (pool.n_idle, pool.n_open) == (0, 0)
    assert all(cache.closed for cache in decoder.caches)
    pool.give_back(lent)
    assert pool.n_idle == 0
    for use in (pool.open, pool.borrow, lambda: mine.forward([1]), lambda: lent.forward([1])):
        with pytest.raises(ClosedError):
            use()


def test_a_pool_knows_its_own(make_pool):
    pool, _ = make_pool(sum)
    other, _ = make_pool(sum)
    session = pool.open()

    assert pool.owns(session)
    assert not other.owns(session)


def test_many_threads(make_pool):
    """Nobody ever sees what another one left, or is using."""
    pool, decoder = make_pool(sum)
    wrong = []

    def work(token):
        for _ in range(200):
            with pool.lend() as session:
                if session.tokens or session.forward([token]).argmax() != token:
                    wrong.append(token)
                if session.tokens != [token]:
                    wrong.append(token)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert pool.n_idle <= session_pool._MOST_IDLE
    assert len(decoder.caches) < 8 * 200 / 2
