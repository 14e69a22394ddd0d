"""The site builds, its links lead somewhere, and it loads nothing remote."""

import html.parser
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

from tests import browser

ROOT = pathlib.Path(__file__).parents[2]
# Attributes by which a page loads something, by tag.
LOADED = {
  'audio': 'src',
  'embed': 'src',
  'iframe': 'src',
  'img': 'src',
  'input': 'src',
  'link': 'href',
  'object': 'data',
  'script': 'src',
  'source': 'src',
  'video': 'src',
}
REMOTE = ('http:', 'https:', '//')


class Page(html.parser.HTMLParser):
  """The anchors, links and loaded files of a page."""

  def __init__(self, path):
    super().__init__()
    self.ids, self.links, self.loaded, self.classes = set(), [], [], set()
    self.feed(path.read_text('utf-8'))

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.ids |= {attrs.get('id'), attrs.get('name')}
    self.classes |= set((attrs.get('class') or '').split())
    if tag == 'a' and attrs.get('href'):
      self.links.append(attrs['href'])
    if tag in LOADED and attrs.get('rel') not in ('canonical', 'prev', 'next'):
      self.loaded.append(attrs.get(LOADED[tag]) or '')


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp('site')
  command = [sys.executable, '-m', 'mkdocs', 'build', '--strict']
  done = subprocess.run(
    [*command, '--site-dir', str(folder)],
    cwd=ROOT,
    env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return folder


@pytest.fixture(scope='module')
def pages(site):
  return {path: Page(path) for path in sorted(site.rglob('*.html'))}


def test_every_page_is_built(site):
  """MkDocs itself refuses pages that the navigation lacks."""
  docs = ROOT / 'docs'
  sources = [*docs.rglob('*.md'), *docs.rglob('*.ipynb')]
  assert len(sources) > 30
  for source in sources:
    assert (site / source.relative_to(docs).with_suffix('.html')).is_file()


def test_links_lead_somewhere(pages):
  broken = []
  for path, page in pages.items():
    if path.name == '404.html':
      continue
    for link in [*page.links, *page.loaded]:
      url = urllib.parse.urlsplit(link)
      if url.scheme or url.netloc or not link:
        continue
      target = path
      if url.path:
        target = (path.parent / urllib.parse.unquote(url.path)).resolve()
      known = pages.get(target)
      anchor = urllib.parse.unquote(url.fragment)
      if not target.exists() or (known and anchor and anchor not in known.ids):
        broken.append((str(path.relative_to(path.parents[1])), link))
  assert not broken


def test_nothing_is_loaded_from_the_network(site, pages):
  for path, page in pages.items():
    assert not [u for u in page.loaded if u.startswith(REMOTE)], path
    # By these the theme's script would load Mermaid and GitHub's stars.
    assert 'mermaid' not in page.classes
    assert 'data-md-component="source"' not in path.read_text('utf-8')
  for path in site.rglob('*.css'):
    assert not re.search(
      r'(url\(|@import)\s*["\']?(https?:)?//', path.read_text()
    )


def test_the_reference_has_every_public_name(pages):
  interface = (ROOT / 'safl_tf' / '__init__.pyi').read_text()
  names = set(re.findall(r' as (\w+)', interface)) - {'__version__'}
  assert len(names) > 40
  anchors = {a for path, page in pages.items() for a in page.ids if a}
  modules = {'aggregate', 'client_work', 'gate', 'mix', 'partition', 'select'}
  for name in names - modules:
    assert f'safl_tf.{name}' in anchors
  for name in modules:
    assert any(f'.{name}.' in anchor for anchor in anchors), name


@browser.needed
def test_the_search_works_from_disk(site, tmp_path):
  """The address has a query, which the theme searches for when it starts."""
  page = site / 'faq.html'
  dom = browser.render(page, tmp_path, query='q=krum')
  found = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', dom)
  assert any('algorithms.html' in link for link in found)
