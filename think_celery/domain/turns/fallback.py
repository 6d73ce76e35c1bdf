"""The models that a turn may ask: the first that does not fail for good."""

from collections.abc import Sequence

from think_celery import providers
from think_celery.errors import NoModel
from think_celery.protocols import Model, Models
from think_celery.runtime import Runtime
from think_celery.wording import a_type


class Lineup:
    """Models in the order in which they are asked. Each name is resolved when it is needed, and not before."""

    def __init__(self, rt: Runtime, given: Models, position: int = 0) -> None:
        self._rt = rt
        self._given = in_order(given)
        self.position = position if position < len(self._given) else 0  # the list may be another one by now
        self._resolved: dict[int, Model] = {}

    @property
    def model(self) -> Model:
        """The model that is asked now.

        Raises:
            NoModel: Its name can't be resolved.
        """
        if self.position not in self._resolved:
            self._resolved[self.position] = self._resolve(self._given[self.position])
        return self._resolved[self.position]

    @property
    def has_next(self) -> bool:
        """Whether there is another one behind it."""
        return self.position + 1 < len(self._given)

    def advance(self) -> Model:
        """Go on to the next one, and return it.

        Raises:
            NoModel: Its name can't be resolved.
        """
        self.position += 1
        return self.model

    def _resolve(self, given: str | Model) -> Model:
        return providers.of_settings(given, self._rt.settings)


def in_order(given: Models) -> Sequence[str | Model]:
    """What an agent named, as a list.

    Raises:
        NoModel: It named none.
    """
    if given is None:
        raise NoModel(
            None, 'none was named. Write model = "openai/gpt-5-mini" in the class, or set think_model.'
        )
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given]
    if not given:
        raise NoModel(None, "the list of models is empty. Name one, or return None for think_model.")
    for at, each in enumerate(given):
        if not (isinstance(each, str) or callable(getattr(each, "stream", None))):
            raise NoModel(
                None,
                f"item {at} of the list that get_model returned (or of model) is {a_type(each)}, neither a "
                "name such as openai/gpt-5-mini nor a model object.",
            )
    return given
