"""A group of commands that imports one only when it is used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from dask_elastic.cli.command import help_text
from dask_elastic.vocab.errors import ElasticError

INTERRUPTED = 130
"""What shells show for a command that Ctrl-C ended."""


Resolved = tuple[str | None, click.Command | None, list[str]]


@dataclass(frozen=True)
class Place:
    """Where a command is, and what it is good for.

    Parameters
    ----------
    module : str
        Its module.
    attribute : str
        Its name there.
    summary : str
        The line that the group's help shows, so that the module need not be imported for it.
    """

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """Finds its commands when they are asked for, and says each error that is no bug in one line.

    Parameters
    ----------
    *arguments, **options
        As `click.Group`.
    places : mapping of str to Place
        The commands by name, in the order in which help lists them.
    """

    def __init__(self, *arguments: Any, places: Mapping[str, Place], **options: Any):
        super().__init__(*arguments, **options)
        self.help = help_text(self.help or "")
        self.places = dict(places)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        place = self.places.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(importlib.import_module(place.module), place.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is asked for, or say which one may be meant."""
        near = difflib.get_close_matches(args[0], self.places, 1)
        if near and args[0] not in self.places:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in self.places.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what goes wrong is a line and an exit code, not a traceback."""
        try:
            return super().invoke(ctx)
        except (ElasticError, OSError) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
