"""The demo's reports: what is read from files, how it is searched, and what the offline model makes of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from think_celery.demo import rules
from think_celery.demo.desk import Desk, open_desk
from think_celery.demo.reports import (
    InvalidReport,
    Report,
    as_prompt,
    from_prompt,
    parse_lines,
    read_files,
    samples,
)
from think_celery.demo.search import excerpt, most_telling, search, words_of


def report(text: str, title: str = "", report_id: str = "R-1") -> Report:
    return Report(report_id=report_id, title=title, text=text)


class TestReading:
    def test_a_line_is_a_report_and_blank_lines_are_none(self, tmp_path: Path) -> None:
        """JSONL: one report a line; a number is an id, too; a title may be missing; a byte order mark may come."""
        path = tmp_path / "given.jsonl"
        path.write_text('\ufeff{"id": 7, "text": " It broke. "}\n\n{"id": "b", "title": "T", "text": "x"}\n')

        assert read_files([path]) == [report("It broke.", "", "7"), report("x", "T", "b")]

    def test_a_markdown_file_is_a_report(self, tmp_path: Path) -> None:
        """Its name is the id, its first heading the title; without a heading all of it is the text."""
        (tmp_path / "issue-1.md").write_text("# Export fails\n\nSince Monday.\n")
        (tmp_path / "issue-2.md").write_text("No heading here.\nTwo lines.")
        (tmp_path / "issue-3.md").write_text("# Only a heading\n")

        read = read_files([tmp_path / f"issue-{number}.md" for number in (1, 2, 3)])

        assert read == [
            report("Since Monday.", "Export fails", "issue-1"),
            report("No heading here.\nTwo lines.", "", "issue-2"),
            report("# Only a heading", "Only a heading", "issue-3"),
        ]

    def test_a_text_file_is_a_report_as_markdown_is(self, tmp_path: Path) -> None:
        """And whoever names a file of another kind is told so."""
        (tmp_path / "mail.txt").write_text("It broke.")

        assert read_files([tmp_path / "mail.txt"]) == [report("It broke.", "", "mail")]
        with pytest.raises(InvalidReport, match=r"\.md, \.txt: one report each"):
            read_files([tmp_path / "mail.pdf"])

    @pytest.mark.parametrize(
        ("content", "place", "problem"),
        [
            ('{"id": 1, "text": "x"}\nnope\n', "line 2", "it is no JSON"),
            ('{"id": 1, "text": "x"}\n\n[1]\n', "line 3", "it is a list, not an object"),
            ("[" * 100_000, "line 1", "it is nested too deeply"),
            ("", "line 1", "the file is empty"),
            (" \n\n", "line 1", "the file is empty"),
            ('{"text": "x"}', "line 1", '"id" is missing'),
            ('{"id": true, "text": "x"}', "line 1", '"id" is true or false, not a text'),
            ('{"id": " ", "text": "x"}', "line 1", '"id" is blank'),
            ('{"id": "a\\nb", "text": "x"}', "line 1", "can't be shown"),
            ('{"id": 1}', "line 1", '"text" is missing'),
            ('{"id": 1, "text": "\\n"}', "line 1", '"text" is blank'),
            ('{"id": 1, "text": 5}', "line 1", '"text" is a number, not a text'),
            ('{"id": 1, "title": [], "text": "x"}', "line 1", '"title" is a list'),
            (json.dumps({"id": 1, "text": "x" * 100_001}), "line 1", "100,000 are allowed"),
            ('{"id": "a", "text": "x"}\n{"id": "A", "text": "y"}', "line 2", "is taken by"),
        ],
    )
    def test_what_can_t_be_used_is_named_by_file_and_line(
        self, content: str, place: str, problem: str, tmp_path: Path
    ) -> None:
        """The error says where, what and what to do."""
        path = tmp_path / "given.jsonl"
        path.write_text(content)

        with pytest.raises(InvalidReport) as caught:
            read_files([path])

        assert str(caught.value).startswith(f"{path}, {place}: ")
        assert problem in str(caught.value)
        assert str(caught.value).endswith("Nothing was started.")

    def test_bytes_that_are_no_text_are_named_by_their_line(self, tmp_path: Path) -> None:
        """A file in another encoding is refused at the line where it shows."""
        path = tmp_path / "latin.md"
        path.write_bytes("fine\nMünchen".encode("latin-1"))

        with pytest.raises(InvalidReport, match=r"latin\.md, line 2: it is not UTF-8"):
            read_files([path])

    @pytest.mark.parametrize(
        ("name", "problem"), [("gone.jsonl", "No such file"), ("a.pdf", ".pdf is not a kind")]
    )
    def test_a_file_that_can_t_be_read_is_named(self, name: str, problem: str, tmp_path: Path) -> None:
        """A missing file and one of another kind are errors that say which are read."""
        with pytest.raises(InvalidReport, match=problem) as caught:
            read_files([tmp_path / name])

        assert name in str(caught.value)
        assert ".jsonl" in str(caught.value)

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        """A folder is refused as one."""
        with pytest.raises(InvalidReport, match="it is a folder"):
            read_files([tmp_path])

    def test_an_id_in_two_files_is_refused_with_both_places(self, tmp_path: Path) -> None:
        """A Markdown file may take the id of a line; the error names both."""
        (tmp_path / "given.jsonl").write_text('{"id": "x", "text": "1"}')
        (tmp_path / "x.md").write_text("2")

        with pytest.raises(
            InvalidReport, match=r"x\.md, line 1: the id 'x' is taken by .*given\.jsonl, line 1"
        ):
            read_files([tmp_path / "given.jsonl", tmp_path / "x.md"])

    def test_half_a_character_is_made_whole(self) -> None:
        """A lone surrogate, which JSON can hold and no file can, is replaced."""
        (found,) = parse_lines('{"id": 1, "text": "a\\ud800b"}', "given")

        assert found.text == "a�b"

    def test_the_samples_are_varied_and_usable(self) -> None:
        """The package brings a dozen reports with ids of their own, some without title."""
        given = samples()

        assert len(given) == 12
        assert len({each.report_id for each in given}) == 12
        assert any(not each.title for each in given)
        assert len({rules.draft_of(each, None)["severity"] for each in given}) == 3


class TestPrompt:
    @pytest.mark.parametrize(
        "given",
        [
            report("Text\n\nwith paragraphs\n\nReport: other", "A title"),
            report("No title"),
            report("x", "Title: of a title", "id: 5"),
        ],
    )
    def test_a_prompt_can_be_read_back(self, given: Report) -> None:
        """The offline model reads the very report that was put to it, whatever its text imitates."""
        assert from_prompt(as_prompt(given)) == given

    @pytest.mark.parametrize(
        "other", ["", "Hello", "Triage this issue report.", "Triage this issue report.\n\nx\n\ny"]
    )
    def test_another_text_is_no_report(self, other: str) -> None:
        """What was not made by the demo is not taken for a report."""
        assert from_prompt(other) is None


class TestSearch:
    def test_reports_with_more_and_rarer_words_come_first(self) -> None:
        """Words that all reports share count little; those that share nothing are left out."""
        others = [
            report("Export of an invoice to PDF crashes", report_id="same"),
            report("The invoice list is slow", report_id="near"),
            report("Dark mode", report_id="far"),
        ]

        found = search(others, "crash exporting invoices to pdf")

        assert [match.report_id for match in found] == ["same", "near"]
        assert found[0].score == 1.0
        assert 0 < found[1].score < 0.5

    def test_endings_and_common_words_don_t_matter(self) -> None:
        """`entries` finds `entry`, and `the` finds nothing."""
        assert words_of("The entries were exported") == words_of("entry export")
        assert search([report("the and of")], "the and of") == []

    def test_no_more_than_asked_for(self) -> None:
        """*limit* holds, and equal matches come in the order of their ids."""
        others = [report("crash", report_id=name) for name in ("c", "a", "b")]

        assert [match.report_id for match in search(others, "crash", limit=2)] == ["a", "b"]

    def test_the_words_to_search_are_the_title_s_as_they_were_spelled(self) -> None:
        """Words of the title come first, as a reader knows them, without repeats."""
        told = most_telling("The export crashes. Crashes again.", "Crashes on export")

        assert told == ["crashes", "export", "again"]

    def test_an_excerpt_ends_between_words(self) -> None:
        """It is one line, never longer than asked for."""
        assert excerpt("one two\nthree four", 12) == "one two…"
        assert excerpt("one  two", 12) == "one two"


class TestRules:
    @pytest.mark.parametrize(
        ("text", "label", "severity"),
        [
            (
                "The app crashes on start. Traceback follows below, it says IndexError somewhere.",
                "crash",
                "medium",
            ),
            (
                "The app crashes for all users since this morning, nobody can open anything at all.",
                "crash",
                "high",
            ),
            (
                "I see the invoices of another company without logging in, simply by their number.",
                "security",
                "high",
            ),
            (
                "All my notes are gone since the update of yesterday, and the trash is empty, too.",
                "data-loss",
                "high",
            ),
            (
                "Opening the list takes 40 seconds and it stutters all the time when I move in it.",
                "performance",
                "medium",
            ),
            (
                "It would be great if there was a calendar view with all due dates of the month.",
                "feature-request",
                "low",
            ),
            (
                "How can I export my data? I looked into the menus and into the settings already.",
                "question",
                "low",
            ),
            (
                "There is a typo in the third paragraph of the documentation page about the sync.",
                "documentation",
                "medium",
            ),
            ("It doesn't work!!!", "needs-information", "medium"),
        ],
    )
    def test_what_is_told_decides(self, text: str, label: str, severity: str) -> None:
        """The offline model's answer depends on the text: another text, other labels."""
        labels = rules.labels_of(report(text))

        assert label in labels
        assert rules.severity_of(report(text), labels) == severity

    def test_a_title_is_one_calm_line(self) -> None:
        """Shouting, marks and ends are taken away; a missing title is made of the first sentence."""
        assert rules.title_of(report("x", "URGENT: re: EXPORT IS BROKEN!!!")) == "Export is broken"
        assert rules.title_of(report("The export fails. It did not before.")) == "The export fails"
        assert len(rules.title_of(report("word " * 100))) <= 80

    def test_a_summary_names_what_seems_to_be_the_same(self) -> None:
        """Two sentences at most, then the likely duplicates."""
        told = rules.summary_of(report("One. Two. Three."), ["R-2", "R-3"])

        assert told == "One. Two. Possibly the same as R-2 and R-3."

    @pytest.mark.parametrize(
        ("matches", "same"),
        [
            ([{"report_id": "R-2", "score": 0.9}, {"report_id": "R-3", "score": 0.1}], ["R-2"]),
            ("Error: the tool failed", []),
            ([{"score": 1}, "x", None], []),
            (None, []),
        ],
    )
    def test_only_good_matches_are_duplicates(self, matches: Any, same: list[str]) -> None:
        """What the search tool answered is used; a failed search finds none."""
        draft = rules.draft_of(
            report("The export crashes with a discount of 100 % on each of the lines."), matches
        )

        assert ("possible-duplicate" in draft["labels"]) == bool(same)
        assert all(name in draft["summary"] for name in same)


class TestDesk:
    def test_reports_are_kept_and_added_to(self, tmp_path: Path) -> None:
        """What was taken in lies there for the next start; the same again changes nothing."""
        desk = open_desk(tmp_path / "state")
        first, second = report("x", "T", "a/b"), report("y", report_id="c")

        assert desk.take_in([first]) == [first]
        assert desk.take_in([first, second]) == [first, second]
        assert open_desk(tmp_path / "state").reports() == [first, second]

    def test_another_text_for_a_known_id_is_refused(self, tmp_path: Path) -> None:
        """Its result would be the other text's."""
        desk = open_desk(tmp_path)
        desk.take_in([report("x")])

        with pytest.raises(InvalidReport, match=r"'R-1'.*another text"):
            desk.take_in([report("y")])
        assert desk.reports() == [report("x")]

    def test_a_result_is_written_once_for_a_key(self, tmp_path: Path) -> None:
        """A step that is repeated after a kill finds its file and leaves it as it is."""
        desk = open_desk(tmp_path)
        path = Path(desk.put_result("a/b", {"labels": ["bug"]}, "key-1"))
        written = path.stat()

        desk.put_result("a/b", {"labels": ["bug"]}, "key-1")

        assert path.parent == desk.out
        assert path.stat().st_ino == written.st_ino
        assert desk.result("a/b") == {"report": "a/b", "labels": ["bug"], "idempotency_key": "key-1"}
        assert [each.name for each in desk.out.iterdir()] == [path.name]

    def test_results_stay_in_the_folder_that_was_named_first(self, tmp_path: Path) -> None:
        """Started again without --out it goes on there; with another one it refuses."""
        open_desk(tmp_path / "state", tmp_path / "out")

        assert open_desk(tmp_path / "state").out == (tmp_path / "out").resolve()
        with pytest.raises(InvalidReport, match="Leave --out away"):
            open_desk(tmp_path / "state", tmp_path / "other")
        assert not (tmp_path / "other").exists()

    def test_what_a_killed_writer_left_is_removed(self, tmp_path: Path) -> None:
        """A half-written file of a process that is gone goes; one of a living process stays."""
        open_desk(tmp_path)
        gone = tmp_path / "results" / ".R-1.json.999999999.1.partial"
        living = tmp_path / "results" / ".R-1.json.1.1.partial"
        gone.write_text("{")
        living.write_text("{")

        open_desk(tmp_path)

        assert (gone.exists(), living.exists()) == (False, True)

    def test_a_folder_that_can_t_be_made_is_named(self, tmp_path: Path) -> None:
        """A file in the way is an error that names the option."""
        (tmp_path / "file").write_text("")

        with pytest.raises(InvalidReport, match=r"--state .*file/state: the folder can't be made"):
            open_desk(tmp_path / "file" / "state")

    def test_a_desk_is_plain_data(self, tmp_path: Path) -> None:
        """Where everything lies follows from the two folders."""
        desk = Desk(folder=tmp_path, out=tmp_path / "o")

        assert desk.database_url == f"sqlite:///{tmp_path}/think.db"
        assert desk.result_file("INK-1.2") == tmp_path / "o" / "INK-1.2.json"

    @pytest.mark.parametrize(
        ("report_id", "words"),
        [
            ("../../etc/x", "etc-x"),
            (".hidden", "hidden"),
            ("a b/c", "a-b-c"),
            ("Größe 5", "Größe-5"),
            ("..", "report"),
            ("😀" * 100, "report"),
            ("ж" * 100, "ж" * 40),
        ],
    )
    def test_any_id_makes_a_visible_file_name(self, report_id: str, words: str, tmp_path: Path) -> None:
        """Its words can be read, it lies in the folder, and no other id has the same."""
        desk = open_desk(tmp_path)
        path = Path(desk.put_result(report_id, {"labels": []}, "key"))

        assert re.fullmatch(re.escape(words) + r"~[0-9a-f]{10}\.json", path.name)
        assert (path.parent, path.exists()) == (desk.out, True)
        assert desk.result_file(f"{report_id}/") != path
        assert desk.result_file(words) != path
