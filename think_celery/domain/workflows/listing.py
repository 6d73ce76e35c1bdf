"""Lists of workflows: a page at a time, in an order that stays."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from think_celery import serialization
from think_celery.domain.pages import Page, Place, check_limit, cursor_of, page_of, read_place, status_names
from think_celery.domain.workflows import workflows as domain
from think_celery.domain.workflows.runs import WorkflowRun, as_run
from think_celery.ids import AgentRef
from think_celery.names import can_be_a_name
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus
from think_celery.store import workflowpages

KIND = "workflows"
BATCH = 500
MOST_LOOKED_AT = 10_000
"""How many workflows one page goes through in search of metadata."""


def find(
    rt: Runtime,
    agent: AgentRef | None = None,
    *,
    status: str | Sequence[str] | None = None,
    workflow: Any = None,
    metadata: Mapping[str, Any] | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[WorkflowRun]:
    """A page of workflows, newest first; of that agent only where one is given.

    One that is asked for by metadata goes through 10,000 workflows at most. It may then be short, even empty, and have
    a cursor all the same: the search goes on from there.

    Raises:
        InvalidValue: A status is unknown, *limit* is not between 1 and 1000, or *cursor* is none of a page.
        InvalidType: *metadata* is no dict.
        NotSerializable: It isn't JSON.
    """
    check_limit(limit)
    wanted = _wanted(rt, metadata)
    name = None if workflow is None else domain.name_of(workflow)
    after = read_place(cursor, KIND)
    filters: dict[str, Any] = {
        "statuses": status_names(status, WorkflowStatus),
        "workflow": name,
        "agent": agent,
    }
    # Another name no workflow has, and not every text fits a database.
    if name is not None and not can_be_a_name(name, 200):
        return Page()
    if wanted:
        return _matching(rt, filters, wanted, limit, after)
    rows = rt.db.look(lambda tx: workflowpages.page(tx, **filters, after=after, limit=limit + 1))
    return page_of(rows, limit, KIND, _place).of(as_run)


def _matching(
    rt: Runtime, filters: Mapping[str, Any], wanted: Mapping[str, str], limit: int, after: Place | None
) -> Page[WorkflowRun]:
    """A page of those that have this metadata.

    It is compared here and not in SQL: the databases do not agree on what is equal in JSON, nor on which texts it may
    hold.
    """
    keys: list[str] = []
    looked_at, cursor = 0, None
    while looked_at < MOST_LOOKED_AT:
        rows = rt.db.look(
            lambda tx, after=after: workflowpages.page(  # type: ignore[misc]
                tx, **filters, after=after, limit=BATCH, outline=True
            )
        )
        for row in rows:
            looked_at += 1
            if _has(row.metadata, wanted):
                keys.append(row.key)
                if len(keys) == limit:
                    break
        cursor = cursor_of(_place(row), KIND) if rows else None
        if len(keys) == limit or len(rows) < BATCH:
            break
        after = _place(row)
    done = len(rows) < BATCH and (not rows or row is rows[-1])
    found = rt.db.look(lambda tx: workflowpages.those(tx, keys)) if keys else []
    return Page(map(as_run, found), None if done else cursor)


def _place(row: Any) -> Place:
    return row.created_at, row.key


def _wanted(rt: Runtime, metadata: Mapping[str, Any] | None) -> dict[str, str]:
    kept = serialization.json_metadata(metadata, rt.settings.max_payload) or {}
    return {name: _text(value) for name, value in kept.items()}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _has(metadata: Any, wanted: Mapping[str, str]) -> bool:
    given = metadata or {}
    return all(name in given and _text(given[name]) == value for name, value in wanted.items())
