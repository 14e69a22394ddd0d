"""What the site adds to MkDocs: notebooks, pictures for dark mode, SVGs.

Each function is an event of MkDocs, see `hooks` in mkdocs.yml.
"""

import json
import pathlib
import posixpath
import re
from typing import Any

from latex2mathml import converter
from mkdocs.structure import files as files_lib

_IMAGE = re.compile(r'<img [^>]*?src="([^":]+)"[^>]*>')
_REMOTE_IMAGE = re.compile(r'!\[([^]]*)\]\(https?:[^)]*\)')  # such as a badge
_MATHS = re.compile(r'\$\$(.+?)\$\$|\$([^\s$][^$\n]*?)\$', re.DOTALL)
# What pandas adds to a table; its style and frame are those of the page here.
_PANDAS = re.compile(
  r'<style.*?</style>|\n\s*| (?:border="1"|class="dataframe")', re.DOTALL
)
_FENCE = '`' * 5  # longer than any in a cell
_ESCAPES = re.compile(r'\x1b\[[0-9;]*m')


class Notebook(files_lib.File):
  """A notebook as a page: its cells and stored outputs as Markdown."""

  def is_documentation_page(self) -> bool:
    """Returns True: the file becomes a page."""
    return True

  @property
  def content_string(self) -> str:
    """The page as Markdown."""
    path = pathlib.Path(self.abs_src_path)
    cells = json.loads(path.read_text('utf-8'))['cells']
    parts = [part for cell in cells for part in _parts(cell)]
    link = f'[Download this notebook](notebooks/{path.name})'
    return '\n\n'.join([parts[0], link, *parts[1:]]) + '\n'


def on_files(files: files_lib.Files, config: Any) -> files_lib.Files:
  """Makes pages of notebooks, and keeps the notebooks for download."""
  for file in list(files):
    if file.src_uri.endswith('.ipynb'):
      files.remove(file)
      folder, name = posixpath.split(file.src_uri)
      path = posixpath.join(folder, 'notebooks', name)
      files.append(
        files_lib.File.generated(config, path, abs_src_path=file.abs_src_path)
      )
      files.append(
        Notebook(
          file.src_uri,
          file.src_dir,
          config.site_dir,
          config.use_directory_urls,
        )
      )
  return files


def on_page_content(
  html: str, page: Any, config: Any, files: files_lib.Files
) -> str:
  """Shows X.dark.png in dark mode, and puts SVGs into the page.

  An SVG in the page takes the page's text color, in light and dark.
  """

  def replace(match: re.Match[str]) -> str:
    image, source = match[0], match[1]
    uri = posixpath.normpath(
      posixpath.join(posixpath.dirname(page.file.src_uri), source)
    )
    root, suffix = posixpath.splitext(uri)
    file = files.get_file_from_path(uri)
    if suffix == '.svg' and file is not None:
      svg = re.sub(r'<style>.*?</style>', '', file.content_string, flags=re.S)
      return f'<span class="diagram">{svg}</span>'
    if files.get_file_from_path(f'{root}.dark{suffix}') is None:
      return image
    dark = f'{posixpath.splitext(source)[0]}.dark{suffix}'
    return image.replace(source, f'{source}#only-light') + image.replace(
      source, f'{dark}#only-dark'
    )

  return _IMAGE.sub(replace, html)


def on_post_page(output: str, page: Any, config: Any) -> str:
  """Keeps the theme from asking GitHub for the repository's stars."""
  return output.replace(' data-md-component="source"', '')


def on_post_template(output: str, template_name: str, config: Any) -> str:
  """Does the same for 404.html, which is not a page."""
  return on_post_page(output, None, config)


def _parts(cell: dict[str, Any]) -> list[str]:
  """Returns a cell and its outputs as blocks of Markdown."""
  source = ''.join(cell['source'])
  if cell['cell_type'] == 'markdown':
    source = _REMOTE_IMAGE.sub(r'\1', source)
    return [_MATHS.sub(_mathml, source)]
  blocks = [f'{_FENCE}python\n{source}\n{_FENCE}']
  for output in cell['outputs']:
    data = output.get('data', {'text/plain': output.get('text', '')})
    if output['output_type'] == 'error':
      data = {'text/plain': '\n'.join(output['traceback'])}
    blocks.append(_output({k: ''.join(v) for k, v in data.items()}))
  return blocks


def _mathml(match: re.Match[str]) -> str:
  """Returns $$LaTeX$$ or $LaTeX$ as MathML, which browsers draw themselves."""
  block, inline = match.groups()
  if block:
    return converter.convert(block.strip(), display='block')
  return converter.convert(inline)


def _output(data: dict[str, str]) -> str:
  """Returns the richest form of an output that a page can show."""
  if 'image/svg+xml' in data:
    return f'<div class="output">{data["image/svg+xml"]}</div>'
  if 'image/png' in data:
    source = data['image/png'].replace('\n', '')
    return f'<img class="output" alt="" src="data:image/png;base64,{source}">'
  if 'text/html' in data:
    table = _PANDAS.sub('', data['text/html'])
    return f'<div class="output">{table}</div>'
  text = _ESCAPES.sub('', data.get('text/plain', '')).rstrip()
  return f'{_FENCE}{{.text .output}}\n{text}\n{_FENCE}'
