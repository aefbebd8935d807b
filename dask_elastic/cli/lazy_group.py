"""A command group that imports a command only when it is used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from dask_elastic.cli.command import help_text
from dask_elastic.vocab.errors import ElasticError

INTERRUPTED = 130
"""The exit code that shells use for a command ended by Ctrl-C."""


@dataclass(frozen=True)
class LazyCommand:
    """The import path and summary of a command.

    Parameters
    ----------
    module : str
        The module of the command.
    attribute : str
        The command's name in that module.
    summary : str
        The command's line in the group's help, which is shown without importing the module.
    """

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """Imports a command when it is invoked, and reports expected errors in one line.

    Parameters
    ----------
    *arguments, **options
        As `click.Group`.
    lazy_commands : mapping of str to LazyCommand
        The commands by name, in the order in which the help lists them.
    """

    def __init__(self, *arguments: Any, lazy_commands: Mapping[str, LazyCommand], **options: Any):
        super().__init__(*arguments, **options)
        self.help = help_text(self.help or "")
        self.lazy_commands = dict(lazy_commands)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if there is none of that name."""
        entry = self.lazy_commands.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one of a similar name."""
        near = difflib.get_close_matches(args[0], self.lazy_commands, 1)
        if near and args[0] not in self.lazy_commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with a text, without importing any command."""
        found = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.lazy_commands.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.lazy_commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; report an expected error as one line and an exit code, without a traceback."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of the output has ended, as `head` does; click exits silently
            raise
        except (ElasticError, OSError) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
