"""The engine of a model: it computes what is waited for, in steps of rows of many sequences.

The engine has no thread of its own. Whoever waits and finds no leader leads: he schedules, runs and
delivers until his own wait is over, then leaves and wakes one who is not served. What becomes of a
request never depends on who leads, nor on what else is in a step.

Who holds which lock: `BOOKS` for microseconds, to choose who is in a step and to enter and leave;
`RUNNING` while a step is computed, one at a time in the process. Nobody else's code runs under
either. `cancel`, finalizers and signal handlers take no lock: they set flags that are read before
the next step.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Row

from rml._kernels.pages import KV_TYPES, PAGE_SIZE, pages_for
from rml.engine.books import BOOKS
from rml.engine.pool import PagePool
from rml.engine.scheduler import Pace, schedule
from rml.engine.sequence import Sequence, SequenceStore
from rml.engine.work import Evaluation, Work
from rml.errors import ArgumentError, ClosedError, OutOfMemory
from rml.llm.decoder import DecoderLM
from rml.llm.plan import RUNNING, Aborted, Plan
from rml.llm.workspace import LEAST_OUTPUTS, MAX_ROWS
from rml.ranges import checked, integer, one_of

__all__ = ["Engine"]


_PATIENCE = 5.0  # seconds: a session may be saved to a slow disk meanwhile

# What a work has in a step: tokens, the position of the first, whether it wants the last logits.
_Part = tuple[Work, Row[int], int, bool]


class Engine:
    """Sequences of a model, and the steps that compute them.

    Parameters
    ----------
    decoder : DecoderLM
        The model.
    kv_memory : int
        Bytes that keys and values of all sequences of a cache type may take.
    n_batch : int
        Rows of a step at most.
    prefix_cache : bool
        Whether sequences share the pages of common beginnings.
    kept_bytes : int, optional
        Bytes of beginnings that may be kept though no sequence uses them; by default all of
        `kv_memory`.
    """

    def __init__(
        self,
        decoder: DecoderLM,
        *,
        kv_memory: int,
        n_batch: int = MAX_ROWS,
        prefix_cache: bool = True,
        kept_bytes: int | None = None,
    ) -> None:
        self._decoder: DecoderLM | None = decoder
        self.kv_memory = kv_memory
        self.prefix_cache = prefix_cache
        self.kept_bytes = kv_memory if kept_bytes is None else kept_bytes
        self.n_batch = min(n_batch, MAX_ROWS)
        self._stores: dict[str, SequenceStore] = {}  # by cache type
        # Joined and not ended, oldest first; kept alive by those who wait, or will.
        self._works: list[weakref.ref[Work]] = []
        self.step_began_at = 0.0
        self._in_step: tuple[Work, ...] = ()
        self._pace = Pace()
        self._torn = False  # a step was interrupted
        self._short_since: float | None = None  # when the first work found no pages
        self._leader: int | None = None
        self._waiters: list[_Waiter] = []
        self._closed = False
        _engines.add(self)

    @property
    def decoder(self) -> DecoderLM:
        """The model.

        Raises
        ------
        ClosedError
            After `close`.
        """
        if self._decoder is None:
            raise ClosedError("the model is closed")
        return self._decoder

    # ---- sequences ----

    def new_sequence(self, kv_type: str, *, shares: bool = True) -> Sequence:
        """Make an empty sequence.

        Parameters
        ----------
        kv_type : str
            How its keys and values are stored.
        shares : bool
            Whether it shares beginnings with others, where the engine does that.

        Raises
        ------
        ArgumentError
            If `kv_type` is unknown.
        OutOfMemory
            If the budget does not hold a single page.
        ClosedError
            If the engine is closed.
        """
        self.require_open()
        return self.store(kv_type).new(shares=shares)

    def store(self, kv_type: str) -> SequenceStore:
        """Return all sequences of a cache type."""
        kv_type = one_of("kv_type", kv_type, KV_TYPES)
        with BOOKS:
            if kv_type not in self._stores:
                pools = [
                    PagePool(
                        len(group.layers),
                        group.n_kv_heads,
                        group.head_dim,
                        kv_type,
                        budget=self.kv_memory,
                        group=i,
                    )
                    for i, group in enumerate(self.decoder.groups)
                ]
                evaluator = self.decoder.evaluator([pool.pages for pool in pools])
                self._stores[kv_type] = SequenceStore(
                    pools,
                    evaluator,
                    prefix_cache=self.prefix_cache,
                    kept_bytes=self.kept_bytes,
                    # The rotary tables of a model are fixed when it is loaded.
                    salt=kv_type,
                )
            return self._stores[kv_type]

    def plan(self, sequence: Sequence, n_tokens: int) -> Plan:
        """Operations of a step of `n_tokens` behind a sequence, to look at or to profile.

        They are recorded for this alone, and what they compute goes to pages of their own.

        Raises
        ------
        ArgumentError
            If `n_tokens` is less than 1 or more than a step can have.
        OutOfMemory
            If there are no pages for them.
        """
        n_tokens = checked("n_tokens", n_tokens, integer(1, MAX_ROWS))
        evaluator = self.decoder.evaluator([pool.pages for pool in sequence.store.pools])
        fork = sequence.fork()
        fork.reserve(n_tokens)
        step = evaluator.begin(n_tokens)
        step.add([0] * n_tokens, len(fork), fork.tables)
        step.want(n_tokens - 1)
        plan = evaluator.plan()
        plan.checks.append(self.decoder.require_weights)  # it may run at any time
        plan.kept_alive = (evaluator, fork)
        return plan

    # ---- waiting ----

    def join(self, work: Work) -> None:
        """Have a work in every step from now on, until it has ended or nobody knows it any more."""
        self.require_open()
        with BOOKS:
            for joined in self._works:
                if joined() is work:
                    return
            self._works.append(weakref.ref(work))

    def part(self, *works: Work) -> None:
        """Have works in no further step; they may join again."""
        if not self._works:
            return
        gone = set(map(id, works))
        with BOOKS:
            self._works = [joined for joined in self._works if id(joined()) not in gone]

    def leave(self, *works: Work) -> None:
        """Forget works, and end those that have not ended; their sequences may change from now."""
        self.part(*works)
        for work in works:
            if work.ended:
                continue
            self.cancel(work)
            with BOOKS:
                if not any(work is other for other in self._in_step):  # else after the step
                    self._end(work)

    @staticmethod
    def _end(work: Work) -> None:
        """End a work that was cancelled, unless its owner is at it."""
        if not (work.ended or work.held):
            work.fail(Aborted())

    def _joined(self) -> list[Work]:
        """Works that somebody knows, oldest first."""
        return [work for joined in self._works if (work := joined()) is not None]

    @property
    def is_leading(self) -> bool:
        """Whether this thread is computing a step, so that it must not wait for one."""
        return self._leader == threading.get_ident()

    def run(self, *works: Evaluation) -> None:
        """Have works computed together, and raise the first error if there was one."""
        self.finish(*works)
        for work in works:
            if work.error is not None:
                raise work.error

    def finish(self, *works: Evaluation) -> None:
        """Have works computed together; what went wrong with each is in its `error`."""

        def done() -> bool:
            for work in works:  # noqa: SIM110 - asked after every step
                if not work.ended:
                    return False
            return True

        try:
            for work in works:
                work.waited = True
                self.join(work)
            self.wait(done)
        except BaseException:
            try:
                self.leave(*works)
            except BaseException:  # a second interrupt: a work that stays would harm the others
                self.leave(*works)
                raise
            raise

    def wait(self, done: Callable[[], bool]) -> None:
        """Return when `done()` is true, and compute what there is while nobody else does.

        Parameters
        ----------
        done : callable
            Asked after each step, also by other threads; quick, and without side effects.

        Raises
        ------
        ArgumentError
            If this thread is computing a step already (a signal handler may not ask for more).
        """
        me, waiter = threading.get_ident(), None
        if self._leader == me:
            raise ArgumentError("the model is computing a step in this thread, so it cannot wait")
        try:
            while not done():
                with BOOKS:
                    if self._leader is None:
                        self._leader = me
                    else:
                        waiter = waiter or _Waiter(done)
                        waiter.clear()
                        if waiter not in self._waiters:
                            self._waiters.append(waiter)
                        if done():  # since it was asked, and the leader did not find the waiter
                            waiter.call()
                if self._leader == me:
                    while not done():
                        self._step()
                elif waiter is not None:
                    waiter.wait()
        finally:
            try:
                self._go(me, waiter)
            except BaseException:  # an interrupt; not in a function, which one could come before
                self._go(me, waiter)
                raise

    def _go(self, me: int, waiter: "_Waiter | None") -> None:
        """Stop leading or waiting, and wake one who may lead if nobody does."""
        with BOOKS:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if self._leader == me:
                self._leader = None
            if self._leader is None and self._waiters:
                self._waiters[0].call()

    # ---- steps ----

    def cancel(self, work: Work) -> None:
        """End a work with the step under way; may be called from a signal handler."""
        work.cancelled = True
        running = self._in_step
        if running and self._all_are_cancelled(running):
            # Should that step have ended by now, the next one is run again.
            running[0].sequence.store.evaluator.abort[0] = 1

    @staticmethod
    def _all_are_cancelled(works: tuple[Work, ...]) -> bool:
        for work in works:  # noqa: SIM110 - every step asks, and `all` takes ten times as long
            if not work.cancelled:
                return False
        return True

    def _step(self) -> None:
        """Compute one step of what there is."""
        self.step_began_at = time.perf_counter()
        try:
            if self._torn:  # what was counted in before an interrupt goes on, from the same logits
                works = self._joined()
                self._advance([w for w in works if not (w.ended or w.held or w.n_wanted)])
            self._torn = True
            with BOOKS:
                parts = self._chosen()
            if parts:
                with RUNNING:
                    self._run(parts)
            else:
                time.sleep(0.0005)  # somebody else has to do something first
            self._torn = False
        finally:
            try:
                self._end_step()
            except BaseException:  # as above
                self._end_step()
                raise

    def _end_step(self) -> None:
        """Give back what was not used, and wake those who are served; twice does no harm."""
        with BOOKS:
            for work in self._in_step:  # those whose tokens were not counted in
                work.sequence.busy = False
                work.sequence.settle()
                if work.cancelled:
                    self._end(work)
            self._in_step = ()
            self._works = [ref for ref in self._works if (w := ref()) is not None and not w.ended]
            for waiter in self._waiters:
                if waiter.done():
                    waiter.call()

    def _chosen(self) -> list[_Part]:
        """Choose who is in the next step and with which tokens, and give them their pages.

        Whoever leaves afterwards may change the sequence at once, so nothing is asked again.
        """
        wanting = []
        for work in self._joined():
            if work.cancelled:
                self._end(work)
            if not work.ended and work.n_wanted:
                wanting.append(work)
        if len(wanting) > 1:  # all of one cache type: that of the oldest
            wanting = [w for w in wanting if w.sequence.store is wanting[0].sequence.store]
            # Those for whom somebody waits have pages first, among them the oldest.
            wanting.sort(key=lambda work: not work.waited)
        parts: list[_Part] = []
        ready = self._ready(wanting)
        for work, n in schedule(ready, self._pace.budget(ready, self.n_batch)):
            if work.ended or not self._reserve(work, n, wanting):
                continue
            wants_last = n == work.n_wanted and work.wants_last
            parts.append((work, work.next_ids(n), len(work.sequence), wants_last))
        self._in_step = tuple(work for work, *_ in parts)
        for work in self._in_step:
            work.sequence.busy = True
        return parts

    def _ready(self, wanting: list[Work]) -> list[Work]:
        """Those who can go on now, with what others have computed of theirs taken over."""
        if len(wanting) == 1 and not wanting[0].n_shareable:  # nobody to wait for or to share with
            return wanting
        ready: list[Work] = []
        # Pages that the step will compute, or begin: whoever needs the same waits for them.
        coming: set[tuple[int, tuple[int, ...]]] = set()
        for work in wanting:
            if len(ready) == LEAST_OUTPUTS:
                break
            if work.n_shareable and work.sequence.shares:
                try:
                    work.adopted(work.sequence.adopt(work.next_ids(work.n_shareable)))
                except Exception as error:  # noqa: BLE001 - raised by whoever waits for this work
                    work.fail(error)
                if not (work.ended or work.n_wanted):  # all of it was there
                    self._advance([work])
                if work.ended:
                    continue
                page = work.sequence.next_page(work.next_ids(PAGE_SIZE))
                if page in coming and work.n_shareable:
                    continue
                coming.add(page)
            # Not begun, or set back: it begins when its pages are there, so that it need not give
            # way again and again. The first one makes room for itself.
            if ready and not len(work.sequence):
                pages = pages_for(work.n_wanted) + 1
                if not all(pool.has(pages) for pool in work.sequence.store.pools):
                    continue
            ready.append(work)
        return ready

    def _reserve(self, work: Work, n: int, wanting: list[Work]) -> bool:
        """Have pages for `n` tokens, at the cost of those who come later; whether there are."""
        while True:
            try:
                work.sequence.reserve(n)
            except OutOfMemory as error:
                behind = wanting[wanting.index(work) + 1 :]
                if self._make_way(work.sequence, behind):
                    continue
                if wanting[0] is not work:
                    work.sequence.give_way()
                elif not self._is_patient(work.sequence):
                    work.fail(error)  # alone, and still there is no room
                return False
            except Exception as error:  # noqa: BLE001 - raised by whoever waits for this work
                work.fail(error)
                return False
            else:
                self._short_since = None
                return True

    def _is_patient(self, sequence: Sequence) -> bool:
        """Whether to wait a little for others who are at work with their sequences.

        They have just got what they waited for, or save a session; then they will be idle.
        """
        if not sequence.store.others_hold(sequence):
            return False
        if self._short_since is None:
            self._short_since = time.monotonic()
        if time.monotonic() - self._short_since < _PATIENCE:
            return True
        self._short_since = None
        return False

    def reserve(self, sequence: Sequence, n: int) -> None:
        """Have pages for `n` tokens of a sequence whose tokens come from elsewhere.

        Raises
        ------
        OutOfMemory
            If there are none, also after those who are idle have given way.
        """
        until = time.monotonic() + _PATIENCE
        while True:
            with BOOKS:
                try:
                    sequence.reserve(n)
                except OutOfMemory:
                    if self._make_way(sequence, []):
                        continue
                    if time.monotonic() > until or not sequence.store.others_hold(sequence):
                        raise
                else:
                    return
            time.sleep(0.001)

    def _make_way(self, sequence: Sequence, behind: list[Work]) -> bool:
        """Have somebody give his pages away for a sequence; whether there was one.

        In this order: sequences that nobody works with, the least recently used first; works that
        have to wait for their callers; then those `behind`, the last one first.
        """
        store = sequence.store
        idle = [s for s in store.living if s.gate is not None and len(s) and not s.gate.locked()]
        if idle:
            min(idle, key=lambda sequence: sequence.used_at).give_way()
            return True
        works = self._joined()
        paused = [w for w in works if not (w.ended or w.waited or w.n_wanted or w.held)]
        for other in (work.sequence for work in [*reversed(paused), *reversed(behind)]):
            if other is not sequence and other.store is store and len(other) and not other.busy:
                other.give_way()
                return True
        return False

    def _run(self, chosen: list[_Part]) -> None:
        """Compute the rows and deliver; whatever happens before that changes no sequence."""
        evaluator = chosen[0][0].sequence.store.evaluator
        rows: list[tuple[Work, Row[int], int, int | None]] = []
        try:
            n_rows = sum(len(ids) for _, ids, _, _ in chosen)
            step = evaluator.begin(n_rows)
            for work, ids, position, wants_last in chosen:
                first, stop = step.add(ids, position, work.sequence.tables)
                output = step.want(stop - 1) if wants_last else None
                rows.append((work, ids, first, output))
            evaluator.abort[0] = 0
            if self._all_are_cancelled(self._in_step):
                return
            evaluator.run()
        except Aborted:  # those who are cancelled end before the next step
            return
        except Exception as error:  # noqa: BLE001 - raised by everyone who waits for a row of this
            for work, *_ in chosen:
                work.fail(error)
            return
        # Logits of the step itself first: what is computed for others overwrites them.
        overwritten = False
        if len(rows) > 1:
            rows.sort(key=lambda row: row[3] is None)
            overwritten = any(not work.wants_last for work, *_ in rows)
        for work, ids, first, output in rows:
            logits = None if output is None else evaluator.logits[output]
            if overwritten and logits is not None:
                logits = logits.copy()
            try:
                work.deliver(len(ids), logits, evaluator, first)
            except Exception as error:  # noqa: BLE001 - raised by whoever waits for this work
                work.fail(error)
        # Last, and at once for each: after an interrupt before this, its rows are computed again.
        with BOOKS:  # who has left meanwhile may have forgotten what these rows stand on
            joined = {id(reference()) for reference in self._works}
            counted = []
            for work, ids, _, _ in rows:
                if id(work) in joined and not work.ended:
                    work.sequence.commit(ids)
                    counted.append(work)
        self._advance(counted)
        self._pace.note(n_rows, len(rows), time.perf_counter() - self.step_began_at)

    @staticmethod
    def _advance(works: list[Work]) -> None:
        for work in works:
            try:
                work.advance()
            except Exception as error:  # noqa: BLE001 - raised by whoever waits for this work
                work.fail(error)

    # ---- the end ----

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def require_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError("the model is closed")

    def close(self) -> None:
        """End all works after the step under way, and let the model go."""
        self._closed = True
        for work in self._joined():
            self.cancel(work)
        self._decoder = None
        self._stores = {}

    def begin_anew(self) -> None:
        """In a forked child nobody leads or waits, and only what the child asks for goes on."""
        self._leader = None
        for work in self._in_step:  # chosen, but not begun
            work.sequence.busy = False
        self._waiters, self._works, self._in_step = [], [], ()


class _Waiter:
    """One who waits: what for, and how to call him."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        # A bare lock, locked until the call: an interrupt inside an `Event` can leave it locked.
        self._not_called = threading.Lock()
        self._not_called.acquire()

    def call(self) -> None:
        """Call him; who calls or clears holds `BOOKS`."""
        if self._not_called.locked():
            self._not_called.release()

    def clear(self) -> None:
        """Forget calls."""
        self._not_called.acquire(blocking=False)

    def wait(self) -> None:
        """Return when he is called."""
        self._not_called.acquire()


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def _forked() -> None:
    for engine in list(_engines):
        engine.begin_anew()


os.register_at_fork(after_in_child=_forked)
