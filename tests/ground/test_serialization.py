"""The codec: what is stored comes back equal and of the same type, or is refused at once."""

import json
import random
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel

from tests.ground import samples
from tests.ground.samples import (
    Box,
    Color,
    Doubling,
    ErrorRecord,
    Grown,
    Hooked,
    IntBox,
    Label,
    Level,
    Line,
    Locked,
    Order,
    Outer,
    Point,
    Rank,
    Rights,
    Slotted,
    Unset,
)
from think_celery.errors import NotSerializable, PayloadTooLarge, UnreadableValue
from think_celery.serialization import MAX_DEPTH, dumps, fingerprint, loads

BERLIN = ZoneInfo("Europe/Berlin")
AN_ID = UUID("0190b4b2-7c1e-7000-8000-000000000001")


def back(value: Any) -> Any:
    return loads(dumps(value, what="result"))


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, Enum):
        return left is right
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return all(map(same, left, right))
    if isinstance(left, BaseModel) or hasattr(left, "__dict__"):
        return same(dict(vars(left)), dict(vars(right)))
    if isinstance(left, datetime | time):
        return left.tzinfo is right.tzinfo or left.utcoffset() == right.utcoffset()
    return str(left) == str(right)  # tells 1.10 from 1.1, and -0.0 from 0.0


COMES_BACK = [
    None,
    True,
    0,
    -(2**200),
    10**3900,
    1.1,
    -0.0,
    5e-324,
    "",
    "\x00 and ☃ and 🍸",
    "lone \ud83c half",
    "\ud83c\udf78",  # two halves, which JSON would join
    [],
    {},
    {"a": [1, {"b": None}]},
    {"\ud83c": 1},
    {"z": 1, "a": 2},
    Decimal("1.10"),
    Decimal("-0E-7"),
    Decimal("1E+400"),
    Decimal("0.12345678901234567890123456789012345678901234567890"),
    AN_ID,
    b"",
    b"\x00\xff",
    date(1, 1, 1),
    date(9999, 12, 31),
    datetime(2026, 3, 1, 12, 30, 0, 1),
    datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=5, minutes=45, seconds=7))),
    datetime(2026, 7, 1, 12, tzinfo=BERLIN),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),  # the hour that comes twice
    datetime(2026, 10, 25, 2, 30, fold=1),
    time(23, 59, 59, 999999),
    time(1, 2, tzinfo=UTC),
    time(1, 2, tzinfo=BERLIN),
    timedelta(days=-1, microseconds=1),
    timedelta.max,
    Color.PAIR,
    Color.CRIMSON,
    Level.LOW,
    Rank.FIRST,
    Rights.READ,
    Rights.READ | Rights.WRITE,
    Rights(0),
    Point(1, [Decimal("2.50")]),
    Slotted("a", datetime(2026, 1, 1, tzinfo=UTC)),
    Line(sku="A", price=Decimal("9.90")),
    Order(id=AN_ID, lines=[Line(sku="A", price=Decimal("1.0"))], note={"by": date(2026, 1, 1)}),
    Outer.Inner(value=3),
    IntBox(item=3),
    Box(item=3),
    {"deep": [{"order": Order(id=AN_ID, lines=[]), "at": [Point(1)]}]},
    # FR-29: a user's dict that looks like a marker of ours, or of kombu's
    {"$think": "datetime", "v": "x"},
    {"$think": {"$think": "dict", "v": {"$think": 1}}},
    {"__type__": "datetime", "__value__": "x"},
    {"v": 1, "c": "os:system"},
    Box(item={"$think": "model", "c": "os:system", "v": {}}),
]


class TestWhatComesBack:
    @pytest.mark.parametrize("value", COMES_BACK, ids=lambda value: repr(value)[:40])
    def test_a_supported_value_comes_back_equal_and_of_its_type(self, value):
        """FR-29: equal typed values, nested ones and dicts that look like markers included."""
        text = dumps(value, what="result")

        assert text.isascii()
        assert "\x00" not in text
        assert same(loads(text), value)
        json.loads(text, parse_constant=pytest.fail)

    def test_a_zone_comes_back_by_name(self):
        """An offset would lose it, and arithmetic across a change of the clocks with it."""
        noon = datetime(2026, 3, 28, 12, tzinfo=BERLIN)

        returned = back(noon)

        assert returned.tzinfo is BERLIN
        assert returned + timedelta(days=1) == noon + timedelta(days=1)

    def test_fold_comes_back(self):
        """Of the hour that comes twice, the second stays the second."""
        assert back(datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)).fold == 1

    def test_a_models_private_and_extra_values_come_back(self):
        """A model is restored with all that makes it equal: private, extra and excluded values, fields set."""
        order = Order(id=AN_ID, lines=[], shipped=True, note="mine")
        order._seen = 7

        returned = back(order)

        assert returned == order
        assert (returned._seen, returned.note, returned.shipped) == (7, "mine", True)
        assert returned.model_fields_set == order.model_fields_set
        assert not hasattr(returned, "_never")

    def test_a_defaulted_field_stays_unset(self):
        """`exclude_unset` gives the same on the first pass and on replay."""
        assert back(Line(sku="A", price=1)).model_dump(exclude_unset=True) == {
            "sku": "A",
            "price": Decimal(1),
        }

    def test_validators_do_not_run_again(self):
        """A validator that changes what it has seen before would make the value another."""
        value = Doubling(amount=2)
        assert value.half is value.half

        returned = back(value)

        assert returned == value
        assert returned.amount == 4

    def test_post_init_does_not_run_again_and_its_attributes_come_back(self):
        """What a dataclass set beside its fields is there afterwards; what it cached is not stored."""
        value = Grown(1)
        assert value.lock is value.lock

        returned = back(value)

        assert (returned.size, returned.total, returned.note) == (2, 0, "grown")
        assert "lock" not in vars(returned)

    def test_random_values_come_back(self):
        """Whatever is built of supported values comes back equal."""
        rng = random.Random(8)
        for _ in range(300):
            value = random_value(rng, 4)
            assert same(back(value), value), value

    def test_the_class_is_found_in_another_process(self):
        """What one process stores another reads, having imported nothing beforehand."""
        text = dumps([Point(1), Color.RED, Line(sku="A", price=1)], what="result")
        code = "import sys; from think_celery.serialization import loads; print(loads(sys.argv[1]))"

        shown = subprocess.run(
            [sys.executable, "-c", code, text], capture_output=True, text=True, check=True, timeout=60
        )

        assert "Point(x=1, y=[])" in shown.stdout
        assert "Color.RED" in shown.stdout


def random_value(rng: random.Random, depth: int) -> Any:
    def words() -> str:
        return "".join(
            rng.choice(["a", "$think", "\x00", "é", "🍸", "\ud83c", "\udf78", '"', "\\"]) for _ in range(4)
        )

    def moment(zone: tzinfo | None) -> datetime:
        return datetime(2026, 1, 1, tzinfo=zone) + timedelta(
            seconds=rng.randrange(3 * 10**7), microseconds=rng.randrange(10**6)
        )

    leaves = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.randint(-(2**70), 2**70),
        lambda: rng.uniform(-1e9, 1e9),
        words,
        lambda: rng.randbytes(5),
        lambda: moment(
            rng.choice([None, UTC, BERLIN, timezone(timedelta(minutes=rng.randrange(-700, 700)))])
        ),
        lambda: moment(None).date(),
        lambda: moment(None).time(),
        lambda: timedelta(seconds=rng.uniform(-1e6, 1e6)),
        lambda: Decimal(rng.randint(-(10**20), 10**20)).scaleb(rng.randint(-30, 30)),
        lambda: UUID(int=rng.getrandbits(128)),
        lambda: rng.choice([*Color, *Level, *Rights]),
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)()
    kind = rng.randrange(4)
    if kind == 0:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 1:
        keys = {rng.choice(["a", "$think", "v", "c", "é\x00"]) for _ in range(rng.randrange(4))}
        return {key: random_value(rng, depth - 1) for key in sorted(keys)}
    if kind == 2:
        return Box(item=random_value(rng, depth - 1))
    return Point(rng.randrange(9), random_value(rng, depth - 1))


class Vague(tzinfo):
    """A zone whose offset depends on `fold`, as dateutil's do: Python then finds no other time equal to it."""

    def utcoffset(self, dt):
        return timedelta(hours=1 if dt is None or dt.fold else 2)

    def dst(self, dt):
        return timedelta(0)


class Row:
    """The shape of a Django model's instance."""

    _meta = object()

    def __init__(self):
        self._state = object()


class Mapped:
    """The shape of a SQLAlchemy model's instance."""

    _sa_class_manager = object()


def cycle() -> list[Any]:
    around: list[Any] = []
    around.append({"again": around})
    return around


def locally() -> Any:
    class Local(BaseModel):
        value: int

    return Local(value=1)


def hooked() -> Hooked:
    value = Hooked()
    value._handle = threading.Lock()
    return value


def replaced() -> Any:
    impostor = type("Shadow", (BaseModel,), {"__module__": samples.__name__, "__qualname__": "Shadow"})
    return impostor()


def in_main() -> Any:
    started = type("Started", (BaseModel,), {"__module__": "__main__", "__qualname__": "Started"})
    return started()


Pair = namedtuple("Pair", "a b")

REFUSED = [
    ({"items": [1, {"total": {1, 2}}]}, 'result["items"][1]["total"]', "a set", "sorted"),
    ([(1, 2)], "result[0]", "a tuple would come back as a list", "Return a list"),
    (Pair(1, 2), "result", "Pair would come back as a list", "Return a list"),
    (frozenset({1}), "result", "a frozenset", "sorted"),
    ({1: "a"}, "result", "the key 1 is of type int", "str(key)"),
    ({AN_ID: "a"}, "result", "is of type UUID", "str(key)"),
    ({None: "a"}, "result", "the key None", "str(key)"),
    ({True: "a"}, "result", "the key True is of type bool", "str(key)"),
    ({Label("a"): 1}, "result", "is of type Label", "str(key)"),
    ({"\ud83c\udf78": 1}, "result", "two halves", "Decode"),
    (float("nan"), "result", "nan is not in JSON", "None"),
    ([float("-inf")], "result[0]", "-inf is not in JSON", "None"),
    (Decimal("NaN"), "result", "is no number", "None"),
    (Decimal("Infinity"), "result", "is no number", "None"),
    (10**5000, "result", "3,900 digits", "hexadecimal"),
    (OrderedDict(a=1), "result", "a subclass of dict", "dict(…)"),
    (Label("x"), "result", "a subclass of str", "str(…)"),
    (bytearray(b"x"), "result", "would come back as bytes", "bytes(…)"),
    (object(), "result", "an object can't be stored", "pydantic"),
    (lambda: 1, "result", "code, not data", "name"),
    (Point, "result", "code, not data", "name"),
    ((n for n in "ab"), "result", "a generator can't be stored", "pydantic"),
    (samples.Failure("x"), "result", "a Failure can't be stored", "pydantic"),
    (ErrorRecord(3), "result", "an ErrorRecord can't be stored", "pydantic"),
    (Row(), "result", "a database object", "primary key"),
    (Mapped(), "result", "a database object", "primary key"),
    (Line.model_construct(sku="A", price={1}, tags=[]), "result.price", "a set", "sorted"),
    (Order(id=AN_ID, lines=[], when={"x": (1,)}), 'result.when["x"]', "a tuple", "list"),
    (Locked("x"), "result.handle", "an object can't be stored", "pydantic"),
    (hooked(), "result._handle", "a lock can't be stored", "pydantic"),
    (Unset(), "result.name", "never set", "default"),
    (Box[int](item=1), "result", "generic", "class Boxint(Box[int])"),
    (locally(), "result", "inside a function", "top level"),
    (in_main(), "result", "__main__", "module of its own"),
    (replaced(), "result", "another object", "Define the class once"),
    (datetime(2026, 1, 1, tzinfo=Vague()), "result", "ambiguous", "astimezone"),
    (cycle(), None, "contains itself", "flat list"),
]


class TestWhatIsRefused:
    @pytest.mark.parametrize(("value", "path", "problem", "remedy"), REFUSED, ids=[row[2] for row in REFUSED])
    def test_what_would_not_come_back_is_refused_with_path_and_remedy(self, value, path, problem, remedy):
        """Sets, tuples, foreign keys, database objects, NaN, unimportable classes: refused at once."""
        with pytest.raises(NotSerializable) as refused:
            dumps(value, what="result")

        assert path is None or refused.value.path == path
        assert problem in refused.value.problem
        assert remedy in refused.value.remedy

    def test_the_path_leads_through_attributes_items_and_keys(self):
        """The path is what one would write in Python to get there."""
        value = Box(item=[0, 1, 2, {"total": 1j}])

        with pytest.raises(NotSerializable) as refused:
            dumps(value, what="result")

        assert refused.value.path == 'result.item[3]["total"]'

    def test_depth_is_bounded(self):
        """A limit that always holds, not one that depends on how deep the caller's own stack is."""
        fits: Any = 1
        for _ in range(MAX_DEPTH):
            fits = {"a": fits}

        assert back(fits) == fits
        with pytest.raises(NotSerializable, match="levels deep"):
            dumps([[fits]], what="result")

    def test_a_text_over_the_limit_is_refused(self):
        """The limit is in bytes of the stored text."""
        assert dumps("x" * 98, what="result", limit=100) == '"' + "x" * 98 + '"'

        with pytest.raises(PayloadTooLarge) as refused:
            dumps("é" * 20, what="The result", limit=100)

        assert (refused.value.what, refused.value.size, refused.value.limit) == ("The result", 122, 100)


class TestReading:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{", "not JSON"),
            ('{"$think":"future","v":1}', "doesn't know"),
            ('{"$think":"model","c":"no.such.module:X","v":{}}', "can't be imported"),
            ('{"$think":"model","c":"tests.ground.samples:Gone","v":{}}', "no model of this name"),
            ('{"$think":"model","c":"os:system","v":{}}', "no model of this name"),
            ('{"$think":"model","c":"tests.ground.samples:Point","v":{}}', "no model of this name"),
            ('{"$think":"dataclass","c":"tests.ground.samples:Line","v":{}}', "no dataclass of this name"),
            ('{"$think":"enum","c":"tests.ground.samples:Line","v":"A"}', "no enum of this name"),
            ('{"$think":"enum","c":"tests.ground.samples:Color","v":"GONE"}', "no such member"),
            ('{"$think":"dataclass","c":"tests.ground.samples:Point","v":{}}', "now requires 'x'"),
            ('{"$think":"model","c":"tests.ground.samples:Line","v":{}}', "now requires 'sku'"),
        ],
    )
    def test_what_cannot_be_read_back_says_why(self, text, problem):
        """A class that was moved, or is not of the stored kind, is an error that names it; nothing is called."""
        with pytest.raises(UnreadableValue, match=problem):
            loads(text)

    def test_a_class_that_has_changed_gives_new_fields_their_defaults(self):
        """Runs outlive deployments: fields gained since have their defaults, fields lost are dropped."""
        point = loads('{"$think":"dataclass","c":"tests.ground.samples:Point","v":{"x":1,"lost":2}}')
        line = loads('{"$think":"model","c":"tests.ground.samples:Line","v":{"sku":"A","price":2,"lost":3}}')

        assert point == Point(1)
        assert line.tags == []
        assert line.model_fields_set == {"sku", "price"}
        assert not hasattr(line, "lost")


class TestFingerprint:
    def test_equal_values_have_one_fingerprint_whatever_the_order_of_keys(self):
        """It tells whether a repeated submission carries the same payload."""
        at = datetime(2026, 1, 1, tzinfo=UTC)

        one = fingerprint({"a": [1, {"c": at, "$think": 1}], "b": Line(sku="A", price=1)})
        other = fingerprint({"b": Line(price=1, sku="A"), "a": [1, {"$think": 1, "c": at}]})

        assert one == other
        assert len(one) == 64

    def test_different_values_differ(self):
        """Types count: a text is not the number that it shows."""
        values = [1, 1.0, "1", True, None, [], {}, [1], {"a": 1}, {"$think": 1}, Decimal(1), uuid4(), b"1"]

        assert len({fingerprint(value) for value in values}) == len(values)
