"""The loop of a turn: model, tools, model, … up to the answer. It is the only way to the model."""

import logging
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from think_celery.domain import continuations, finals, hooks, recovery, requests
from think_celery.domain.drafts import Draft
from think_celery.domain.live import Broadcast
from think_celery.domain.patience import patiently
from think_celery.domain.requests import Plan
from think_celery.domain.toolcalls import Scene, execute
from think_celery.domain.turnstate import PutBack, TurnState, last_step, steps_of
from think_celery.errors import ModelAborted, ModelError, NoFinalAnswer, NoModel
from think_celery.messages import ToolPart, UIMessage, dump_parts
from think_celery.protocols import AgentHooks, Finish, Model, ModelRequest
from think_celery.retries import Retry, jittered
from think_celery.store import submissions
from think_celery.store.database import Tx
from think_celery.tools import Tool, as_tools
from think_celery.turnhooks import ModelStepContext, StepConfig, StepResult, TurnConfig, TurnContext

logger = logging.getLogger("think_celery.turns")

LONGEST_WAIT_SECONDS = 30.0
"""A longer wait for the model frees the worker."""

LONGEST_PARK_SECONDS = 86_400.0
"""No wish of a provider is granted beyond this."""

MODEL_RETRY = Retry(delay=1, backoff="exponential", max_delay=60)


class Loop:
    """The loop of one turn."""

    def __init__(self, turn: TurnState, agent: AgentHooks) -> None:
        self.turn, self.rt, self.agent = turn, turn.rt, agent
        self.failures: int = turn.row.model_attempts
        self.steps: list[StepResult] = []
        self._first = turn.claim.place.steps_before  # of the steps that are this turn's own

    def run(self) -> tuple[Any, Sequence[ToolPart]]:
        """Ask the model until it has answered. Returns a structured turn's output, and the calls that wait."""
        self._prepare()
        turn, plan = self.turn, self.plan
        found = recovery.decide(turn.answer.parts, self._may_repeat)
        turn.answer.parts = found.parts
        if turn.again:
            turn.show_again()
        self.steps = steps_of(turn.about, found.parts)
        turn.step = max(0, len(self.steps) - 1)
        waiting = self._execute(found.to_run, self.tools) if found.to_run else []
        if found.to_run:
            self._first = min(self._first, len(self.steps) - 1)  # an earlier turn's step is over only now
            self._is_over(None)
        continues, complete = found.continues, found.complete and turn.steps > 0
        while not (complete or waiting) and (continues or turn.steps < plan.max_steps):
            turn.safe_point()
            if not continues and self._stops():
                break
            finish, asked, tools = self._step(continues)
            continues = False
            if turn.answer.final is not None and self.final is not None:
                return self._answered(self.final, asked, finish), ()
            if asked:
                waiting = self._execute(asked, tools)
            self._is_over(finish)
            if not asked:
                break
        if self.final is not None and not waiting:
            raise NoFinalAnswer(self.final.name)
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
        elif place.continues is not None:
            self._finish_calls_of(place.continues)
        self.model, no_model = self._own_model()
        system, transcript = asking.decide("get_system_prompt"), turn.history()
        max_steps = structure.get("max_steps") or self.agent.max_steps
        config = self._before_turn(system, transcript, tools, max_steps)
        tools = as_tools([*tools, *config.tools])
        self.tools = {tool.name: tool for tool in tools}
        self.final = finals.for_turn(turn.row.structure, self.tools)  # a further tool may have its name
        turn.answer.hidden = None if self.final is None else self.final.name
        if config.model is not None:
            self.model = hooks.resolve(self.rt, self.agent.agent_class, config.model)
        if self.model is None:
            raise no_model or NoModel(None, "no model was named")
        self.conditions = config.conditions
        self.plan = Plan(
            model=self.model,
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

    def _own_model(self) -> tuple[Model | None, NoModel | None]:
        """The agent's own model, if there is one: ``before_turn`` may name another."""
        try:
            return hooks.model_of(self.rt, self.agent, self.turn.hooks), None
        except NoModel as error:
            return None, error

    def _before_turn(
        self, system: str | None, transcript: Sequence[UIMessage], tools: Sequence[Tool], max_steps: int
    ) -> TurnConfig:
        if not self.turn.hooks.has("before_turn"):
            return TurnConfig()
        told = TurnContext(
            model=self.model,
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

    def _finish_calls_of(self, message_id: str) -> None:
        """Make the approved calls of an earlier answer that is not the last message any more, where it stands."""
        turn = self.turn
        agent_id, submission_id = turn.claim.agent.id, turn.row.id
        live = Broadcast(self.rt, agent_id, submission_id, message_id, turn.claim.lease.token)
        draft = Draft(self.rt, turn.hold, agent_id, submission_id, message_id, in_place=True)
        draft.load()
        draft.answer.parts = continuations.resumed(draft.answer.parts, self.approved)
        found = recovery.decide(draft.answer.parts, self._may_repeat)
        draft.answer.parts = found.parts
        live.put({"type": "reset"}, {"type": "restored", "parts": dump_parts(found.parts)})
        execute(self._scene(draft, live, self.tools), found.to_run)

    def _may_repeat(self, name: str) -> bool:
        return name in self.tools and self.tools[name].idempotent

    # --- model steps ------------------------------------------------------------------------------

    def _step(self, continues: bool) -> tuple[Finish, list[ToolPart], Mapping[str, Tool]]:
        """One model step, with as many attempts as the settings allow: its end, its calls, and the tools it has."""
        turn = self.turn
        turn.step = max(0, turn.answer.steps - 1) if continues else turn.answer.steps  # in the whole answer
        request = requests.next_request(self.plan, turn.answer, turn.claim.message_id, continues=continues)
        model, request = self._before_step(request)
        while True:
            turn.live.put(*turn.answer.begin_step(continues=continues))
            try:
                finish = self._stream(model, request)
                break
            except ModelAborted:
                raise
            except ModelError as error:
                turn.rewind()
                self._wait_after(error)
        turn.draft.note(finish)
        asked = turn.answer.end_step()
        self.failures = 0
        turn.live.put({"type": "finish-step", "finishReason": finish.reason})
        offered = {spec.name for spec in request.tools}
        return finish, asked, {name: tool for name, tool in self.tools.items() if name in offered}

    def _before_step(self, request: ModelRequest) -> tuple[Model, ModelRequest]:
        turn, model = self.turn, self.plan.model
        if not turn.hooks.has("before_step"):
            return model, request
        told = ModelStepContext(
            step=turn.step,
            steps=list(self.steps),
            model=model,
            system=request.system,
            messages=request.messages,
            tools=request.tools,
            tool_choice=request.tool_choice,
            **turn.about,
        )
        config = turn.hooks.config("before_step", StepConfig, told)
        if config is None:
            return model, request
        agent_class = self.agent.agent_class
        if config.model is not None:
            model = hooks.resolve(self.rt, agent_class, config.model)
        final = None if self.final is None else self.final.name
        return model, requests.changed(request, config, f"{agent_class}.before_step", final)

    def _stream(self, model: Model, request: ModelRequest) -> Finish:
        turn = self.turn
        patiently(self.rt, turn.hold, turn.hold.check)
        self.rt.failpoint("turn:before-model")
        events = model.stream(request, turn.stop.signal)
        try:
            for event in events:
                if isinstance(event, Finish):
                    return event
                if turn.stop.signal.aborted:
                    raise ModelAborted(f"{model.name}: the request was given up")
                turn.take(event)
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        raise ModelError(f"{model.name} ended its answer without a finish", retryable=True)

    def _wait_after(self, error: ModelError) -> None:
        turn = self.turn
        self.failures += 1
        if not error.retryable or self.failures >= self.rt.settings.model_attempts:
            raise error
        seconds = jittered(MODEL_RETRY.delay_before(self.failures + 1).total_seconds(), random.Random())
        seconds = min(max(seconds, error.retry_after_seconds or 0.0), LONGEST_PARK_SECONDS)
        logger.warning(
            "submission %s: model request %d failed (HTTP %s); trying again in %.1f s",
            turn.row.id,
            self.failures,
            error.status_code,
            seconds,
        )
        if seconds > LONGEST_WAIT_SECONDS:
            raise PutBack(seconds, self.failures)

        def change(tx: Tx) -> None:
            turn.draft.unfinished(tx)
            submissions.count_model_attempts(tx, turn.row.id, self.failures)

        turn.draft.write(change)
        self.rt.clock.sleep(seconds, turn.stop.signal)
        if turn.stop.signal.aborted:
            raise ModelAborted("told to stop while waiting for the model")

    def _execute(self, parts: list[ToolPart], tools: Mapping[str, Tool]) -> list[ToolPart]:
        """Make these calls; returns those that wait for somebody."""
        return execute(self._scene(self.turn.draft, self.turn.live, tools), parts)

    def _scene(self, draft: Draft, live: Broadcast, tools: Mapping[str, Tool]) -> Scene:
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

    def _answered(self, final: finals.Final, asked: list[ToolPart], finish: Finish) -> Any:
        """The model gave its final answer: other calls of the same step are not run."""
        turn = self.turn
        assert turn.answer.final is not None
        self._is_over(finish)
        output = final.check(turn.answer.final.arguments)
        if asked:
            turn.answer.drop(asked)
            turn.show_again()
        return output
