"""The loop of a turn: model, tools, model, … up to the answer. It is the only way to the model."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from think_celery.domain import recovery
from think_celery.domain.agents import hooks
from think_celery.domain.conversation.live import RESTORED, LiveTurn
from think_celery.domain.patience import patiently
from think_celery.domain.turns import continuations, eventchecks, finals, requests
from think_celery.domain.turns.attempts import Attempts
from think_celery.domain.turns.drafts import Draft
from think_celery.domain.turns.fallback import Lineup
from think_celery.domain.turns.requests import Plan
from think_celery.domain.turns.state import TurnState, last_step, steps_of
from think_celery.domain.turns.toolcalls import Scene, execute
from think_celery.errors import ModelAborted, ModelError, NoFinalAnswer, NoModel
from think_celery.hooks.turns import ModelStepContext, StepConfig, StepResult, TurnConfig, TurnContext
from think_celery.messages import ToolPart, UIMessage, dump_parts
from think_celery.protocols import AgentHooks, Finish, Model, ModelRequest
from think_celery.tools import Tool, as_tools

logger = logging.getLogger("think_celery.turns")


class Loop:
    """The loop of one turn."""

    def __init__(self, turn: TurnState, agent: AgentHooks) -> None:
        self.turn, self.rt, self.agent = turn, turn.rt, agent
        self.steps: list[StepResult] = []
        self._first = turn.claim.place.steps_before  # of the steps that are this turn's own
        self.output: Any = None
        self._said = False

    def run(self) -> tuple[Any, Sequence[ToolPart]]:
        """Ask the model until it has answered. Returns a structured turn's output, and the calls that wait."""
        self._prepare()
        turn, plan = self.turn, self.plan
        found = recovery.decide(turn.answer.parts, self._may_repeat)
        turn.draft.take_up(found.parts)
        if turn.again:
            turn.show_again()
        self.steps = steps_of(turn.about, turn.answer.parts)
        turn.step = max(0, len(self.steps) - 1)
        waiting = self._execute(found.to_run, self.tools) if found.to_run else []
        if found.to_run:
            self._first = min(self._first, len(self.steps) - 1)  # an earlier turn's step is over only now
            self._is_over(None)
        continues = found.continues
        complete = found.complete and turn.steps > 0 and not turn.draft.was_refused
        while not (complete or waiting) and (continues or turn.steps < plan.max_steps):
            turn.safe_point()
            if not continues and self._stops():
                break
            finish, asked, tools = self._step(continues)
            continues = False
            if self.final is not None and (turn.answer.final is not None or not asked):
                if self._answered(self.final, asked, finish):
                    return self.output, ()
                continue
            if asked:
                waiting = self._execute(asked, tools)
            self._is_over(finish)
            if not asked:
                break
        if self.final is not None and not waiting:
            raise NoFinalAnswer(self.final.name, len(turn.draft.refused) + 1)
        return None, waiting

    # --- what it works with -----------------------------------------------------------------------

    def _prepare(self) -> None:
        """Ask the agent for model, prompt and tools, then ``before_turn`` for what shall be otherwise."""
        turn, asking, place = self.turn, self.turn.hooks, self.turn.claim.place
        tools = list(hooks.all_tools(self.agent, asking))
        structure = turn.row.structure or {}
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.final = finals.for_turn(turn.row.structure, self.tools)
        self.approved = patiently(self.rt, turn.hold, self._approved)
        if place.continues == place.message_id:
            turn.answer.parts = continuations.resumed(turn.answer.parts, self.approved, place.steps_before)
        all_made = place.continues in (None, place.message_id) or self._finish_calls_of(place.continues)
        self.models, no_model = self._own_models()
        system, transcript = hooks.system_prompt(self.agent, asking), turn.history()
        max_steps = structure.get("max_steps") or self.agent.max_steps
        config = self._before_turn(system, transcript, tools, max_steps)
        tools = as_tools([*tools, *config.tools])
        self.tools = {tool.name: tool for tool in tools}
        self.final = finals.for_turn(turn.row.structure, self.tools)  # a further tool may have its name
        turn.answer.hidden = None if self.final is None else self.final.name
        if not all_made and place.continues is not None:
            self._finish_calls_of(place.continues, known_only=False)
            transcript = turn.history()
        if config.model is not None:
            self.models = hooks.resolve(
                self.rt, self.agent.agent_class, config.model, turn.row.model_position
            )
        if self.models is None:
            raise no_model or NoModel(None, "no model was named")
        self.attempts = Attempts(self.rt, turn.hold, turn.draft, self.models, turn.row, turn.stop.signal)
        self.conditions = config.conditions
        self.plan = Plan(
            system=system if config.system is None else config.system,
            transcript=transcript if config.messages is None else config.messages,
            offered=self._offered(config, tools),
            final=self.final,
            max_steps=config.max_steps or max_steps,
            timeouts=requests.timeouts(self.rt.settings),
            tool_choice=config.tool_choice,
            temperature=config.temperature,
            max_output_tokens=config.max_output_tokens,
            headers=config.headers,
            provider_options=config.provider_options,
            nudge=continuations.nudge(place),
        )

    def _own_models(self) -> tuple[Lineup | None, NoModel | None]:
        """The agent's own models, if there are any: ``before_turn`` may name others."""
        try:
            position = self.turn.row.model_position
            return hooks.models_of(self.rt, self.agent, self.turn.hooks, position), None
        except NoModel as error:
            return None, error

    def _before_turn(
        self, system: str | None, transcript: Sequence[UIMessage], tools: Sequence[Tool], max_steps: int
    ) -> TurnConfig:
        if not self.turn.hooks.has("before_turn"):
            return TurnConfig()
        told = TurnContext(
            model=None if self.models is None else self.models.model,
            system=system,
            messages=transcript,
            tools=tools,
            max_steps=max_steps,
            final_answer=None if self.final is None else finals.spec_of(self.final),
            **self.turn.about,
        )
        return self.turn.hooks.config("before_turn", TurnConfig, told) or TurnConfig()

    def _offered(self, config: TurnConfig, tools: Sequence[Tool]) -> Sequence[Tool]:
        hook, known = f"{self.agent.agent_class}.before_turn", [tool.name for tool in tools]
        forced = getattr(config.tool_choice, "name", None)
        if config.active_tools is not None:
            names = requests.active(config.active_tools, known, hook)
            tools = [tool for tool in tools if tool.name in names]
        if forced is not None and (self.final is None or forced != self.final.name):
            requests.active([forced], [tool.name for tool in tools], hook)
        return tools

    def _approved(self) -> dict[str, str]:
        claim = self.turn.claim
        message_id = claim.place.continues
        if message_id is None:
            return {}
        agent_id, submission_id = claim.agent.id, claim.row.id
        return self.rt.db.read(lambda tx: continuations.approved(tx, agent_id, message_id, submission_id))

    def _finish_calls_of(self, message_id: str, *, known_only: bool = True) -> bool:
        """Make the approved calls of an earlier answer that is not the last message any more, where it stands.

        False if some are left whose tools only ``before_turn`` may know.
        """
        turn = self.turn
        agent_id, submission_id = turn.claim.agent.id, turn.row.id
        live = LiveTurn(self.rt, agent_id, submission_id, message_id, turn.claim.lease.token)
        draft = Draft(self.rt, turn.hold, agent_id, turn.row, message_id, in_place=True)
        draft.tokens = turn.draft.tokens
        draft.load()
        draft.answer.parts = continuations.resumed(draft.answer.parts, self.approved)
        found = recovery.decide(draft.answer.parts, self._may_repeat)
        draft.answer.parts = found.parts
        live.put({"type": "reset"}, {"type": RESTORED, "parts": dump_parts(found.parts)})
        to_run = [part for part in found.to_run if part.tool_name in self.tools or not known_only]
        execute(self._scene(draft, live, self.tools), to_run)
        return len(to_run) == len(found.to_run)

    def _may_repeat(self, name: str) -> bool:
        return name in self.tools and self.tools[name].idempotent

    # --- model steps ------------------------------------------------------------------------------

    def _step(self, continues: bool) -> tuple[Finish, list[ToolPart], Mapping[str, Tool]]:
        """One model step, with as many attempts as the settings allow: its end, its calls, and the tools it has."""
        turn = self.turn
        turn.step = max(0, turn.answer.steps - 1) if continues else turn.answer.steps  # in the whole answer
        message_id, refused = turn.claim.message_id, turn.draft.refused
        request = requests.next_request(
            self.plan, turn.answer, message_id, continues=continues, refused=refused
        )
        chosen, request = self._before_step(request)
        while True:
            turn.live.put(*turn.answer.begin_step(continues=continues))
            model = chosen or self.attempts.model
            try:
                finish = self._stream(model, request)
                break
            except ModelAborted as aborted:
                turn.draft.spend(aborted.usage)
                raise
            except ModelError as error:
                turn.draft.spend(error.usage)
                turn.rewind()
                self.attempts.after(error, last=self._said or chosen is not None)
        turn.draft.note(finish, model.name)
        asked = turn.answer.end_step()
        self.attempts.failures = 0
        turn.live.put({"type": "finish-step", "finishReason": finish.reason})
        offered = {spec.name for spec in request.tools}
        return finish, asked, {name: tool for name, tool in self.tools.items() if name in offered}

    def _before_step(self, request: ModelRequest) -> tuple[Model | None, ModelRequest]:
        """The request as ``before_step`` wants it, and the model, if it names one for this step alone."""
        turn = self.turn
        if not turn.hooks.has("before_step"):
            return None, request
        told = ModelStepContext(
            step=turn.step,
            steps=list(self.steps),
            model=self.attempts.model,
            system=request.system,
            messages=request.messages,
            tools=request.tools,
            tool_choice=request.tool_choice,
            **turn.about,
        )
        config = turn.hooks.config("before_step", StepConfig, told, unlike=(TurnConfig,))
        if config is None:
            return None, request
        agent_class, model = self.agent.agent_class, None
        if config.model is not None:
            model = hooks.resolve(self.rt, agent_class, config.model).model
        final = None if self.final is None else self.final.name
        return model, requests.changed(request, config, f"{agent_class}.before_step", final)

    def _stream(self, model: Model, request: ModelRequest) -> Finish:
        turn = self.turn
        patiently(self.rt, turn.hold, turn.hold.check)
        self.rt.failpoint("turn:before-model")
        self._said = False
        stop = turn.stop.signal
        events = model.stream(request, stop)
        try:
            for event in events:
                self._said = True
                if isinstance(event, Finish):
                    eventchecks.check(event)
                    return event
                if stop.aborted:
                    raise ModelAborted(f"{model.name}: the request was given up")
                turn.take(event)
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        raise ModelError(f"{model.name} ended its answer without a finish", retryable=True)

    def _execute(self, parts: list[ToolPart], tools: Mapping[str, Tool]) -> list[ToolPart]:
        """Make these calls; returns those that wait for somebody."""
        return execute(self._scene(self.turn.draft, self.turn.live, tools), parts)

    def _scene(self, draft: Draft, live: LiveTurn, tools: Mapping[str, Tool]) -> Scene:
        turn = self.turn
        return Scene(
            rt=self.rt,
            hold=turn.hold,
            draft=draft,
            hooks=turn.hooks,
            tools=tools,
            agent_id=turn.claim.agent.id,
            agent_name=turn.claim.agent.name,
            about=turn.about,
            show=live.put,
            approved=self.approved,
            structured=self.final is not None,
        )

    def _is_over(self, finish: Finish | None) -> None:
        """A model step is over, with all its calls."""
        result = last_step(self.turn.about, self.turn.answer.parts, finish)
        self.steps[result.step :] = [result]
        self.turn.hooks.react("on_step_finish", result)

    def _stops(self) -> bool:
        """Whether the turn ends here because a condition of the user's holds."""
        own = self.steps[self._first :]
        if not own:
            return False
        return any(
            self.turn.hooks.ask("stop_when", partial(condition, list(own))) for condition in self.conditions
        )

    def _answered(self, final: finals.Final, asked: list[ToolPart], finish: Finish) -> bool:
        """The model gave its final answer, or none: whether it is taken; else the model may answer again.

        Other calls of the same step are not run.
        """
        turn = self.turn
        self._is_over(finish)
        asked_by_now = len(turn.draft.refused) + 1
        self.output, error = final.look_at(turn.answer.final, turn.hooks.ask, asked_by_now)
        if error is not None and (
            len(turn.draft.refused) >= final.retries or turn.steps >= self.plan.max_steps
        ):
            raise error
        if asked:
            turn.answer.drop(asked)
            turn.show_again()
        if error is None:
            return True
        turn.draft.refuse(error, turn.answer.final)
        turn.draft.store_step(progress=True)
        logger.info("submission %s: its final answer was refused; the model may answer again", turn.row.id)
        self.rt.failpoint("turn:answer-refused")
        return False
