"""Classes at the top level of a module, as users define theirs, for the codec and the schemas."""

import dataclasses
import enum
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from typing_extensions import TypedDict

T = TypeVar("T")


class Color(enum.Enum):
    RED = 1
    PAIR = (1, 2)
    CRIMSON = RED  # another name of it


class Level(enum.StrEnum):
    LOW = "low"


class Rank(enum.IntEnum):
    FIRST = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: list[Decimal] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    at: datetime | None = None


@dataclasses.dataclass
class Grown:
    """Sets more than its fields, and would change a value that is built twice."""

    size: int
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.size += 1
        self.note = "grown"

    @cached_property
    def lock(self) -> object:
        return object()


@dataclasses.dataclass
class Locked:
    name: str

    def __post_init__(self) -> None:
        self.handle = object()


@dataclasses.dataclass
class Unset:
    name: str = dataclasses.field(init=False)


class Failure(Exception):
    pass


@dataclasses.dataclass
class ErrorRecord(Failure):
    code: int


class Line(BaseModel):
    sku: str
    price: Decimal
    tags: list[str] = []


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: UUID
    lines: list[Line]
    due: date | None = None
    shipped: bool = Field(default=False, exclude=True)
    _seen: int = PrivateAttr(default=0)
    _never: int = PrivateAttr()


class Doubling(BaseModel):
    """A validator that must not run again on the way back."""

    amount: int

    @field_validator("amount")
    @classmethod
    def double(cls, given: int) -> int:
        return given * 2

    @cached_property
    def half(self) -> object:
        return object()


class Outer:
    class Inner(BaseModel):
        value: int


class Box(BaseModel, Generic[T]):
    item: T


class IntBox(Box[int]):
    pass


class Hooked(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    _handle: Any = PrivateAttr(default=None)


class Label(str):
    pass


class Shadow:
    """Found under a name that another class claims."""


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int
    weight: float


class Dog(BaseModel):
    kind: Literal["dog"]
    weight: Decimal


class Pets(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


class Bill(BaseModel):
    total: Decimal
    tip: Decimal | None = None
    rate: float = 0.0
    by_name: dict[str, Decimal] = {}
    anything: Any = None
    pair: tuple[Decimal, float] | None = None


class Answer(TypedDict):
    labels: list[str]
    urgent: bool
