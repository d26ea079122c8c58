"""The report: one HTML page of everything that a folder of results holds (the `report` extra).

The page is made of sections, one for each file of a result that is there:

1. A command writes its result into DIR as JSON, by the result's ``to_json``; the result's class
   has a ``load(folder)``.
2. A module of this room, ``NAME_section.py``, has a function from the folder to a
   `blocks.Section`: a title, a summary in a sentence, and parts made of the blocks in
   `report.blocks` (paragraphs, lists, facts, tables, panels). It reads the file by that ``load``
   alone, writes no HTML, and draws with panels (`figures.panel.Panel`), each with its text
   alternative. Whatever is in the files is text: the template escapes it.
3. One line in `report.page.SECTIONS` names the file and the function.

The command ends with ``cli.out_folder.finish(out)``, which notes its command line and writes the
page. Nothing else needs to know of the new kind.
"""
