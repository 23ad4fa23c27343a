"""How a definition may change without a rebuild: more queues, more columns, wider columns.

A schema is compared by what it means and not by its text. A column that is added is null in the
rows that are there. Everything else is refused with what to do instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.errors import InvalidOption
from forebay.pipelines.ingest.backfill import REBUILDABLE, document_of
from forebay.pipelines.ingest.building import Builder
from forebay.pipelines.ingest.definition import Definition
from forebay.pipelines.ingest.output import DECODED, Output, columns_of
from forebay.spark.open_tables import columns_in, schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}


def check_without_spark(output: Output, definition: Definition) -> None:
    """Raises for a change that is wrong whatever the columns are."""
    old = Definition.from_document(output.document()["definition"])
    changed = [name for name in definition.differences(old) if name != "schema"]
    gone = sorted(set(old.source) - set(definition.source))
    if not gone and "source" in changed:
        changed.remove("source")
    if changed == ["source"]:
        raise InvalidOption(
            f"source: {gone[0]} is missing, from which {output.path} was made: leave it in, even "
            "if the queue is gone, or use another out"
        )
    if changed:
        raise InvalidOption(_refusal(output, changed))


def evolve(output: Output, builder: Builder) -> Builder:
    """Changes the tables to a definition that has grown; returns the builder for it.

    Raises if the definition has not only grown.
    """
    document = output.document()
    old = Definition.from_document(document["definition"])
    definition = builder.definition
    if definition.schema is not None and old.schema is not None:
        declared, before = columns_of(definition.schema), columns_of(old.schema)
        if declared == before:
            definition = replace(definition, schema=old.schema)
        _check_grown("schema", before, declared, output)
    builder = replace(builder, definition=definition)
    if definition == old and builder.columns == document["tables"][DECODED]:
        return builder
    _check_grown("sql", columns_in(document, DECODED), columns_of(builder.columns), output)
    new = {**document, **document_of(builder, document["starts"])}
    if builder.columns != document["tables"][DECODED]:
        output.tables(document)[DECODED].evolve(schema_of(new, DECODED))
    # Last: until it is written, the next run does all this again.
    output.write_document(new)
    return builder


def _check_grown(option: str, old: StructType, new: StructType, output: Output) -> None:
    for field in old:
        if field.name not in new.names:
            _refuse(option, f"the column {field.name} is missing", output)
        kind = new[field.name].dataType
        if kind != field.dataType and not _is_wider(field.dataType, kind):
            was, becomes = field.dataType.simpleString(), kind.simpleString()
            _refuse(option, f"the column {field.name} changes from {was} to {becomes}", output)


def _refuse(option: str, what: str, output: Output) -> None:
    raise InvalidOption(
        f"{option}: {what}, and {output.path} has rows with it: use another out, or rebuild the "
        "existing tables with backfill '..'"
    )


def _is_wider(old: DataType, new: DataType) -> bool:
    from pyspark.sql.types import DecimalType

    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale == old.scale and new.precision >= old.precision
    return new.typeName() in _WIDER.get(old.typeName(), ())


def _refusal(output: Output, changed: list[str]) -> str:
    names = " and ".join(changed)
    verb = "differs" if len(changed) == 1 else "differ"
    text = f"{names} {verb} from the definition of {output.path}: use another out"
    if set(changed) <= set(REBUILDABLE):
        text += ", or rebuild the existing tables with backfill '..'"
    return text
