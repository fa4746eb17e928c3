#!/bin/sh
# Builds the sdist, and the wheel from it; checks both; tags the version of clusterrun/__init__.py. Pushes nothing.
# usage: scripts/release.sh PYTHON   (a Python with the `dev` extra)
set -eu
python=$1
refuse() { printf 'release: %s\n' "$1" >&2; exit 1; }

version=$("$python" -c 'import clusterrun; print(clusterrun.__version__)')
tag=v$version
sdist=dist/clusterrun-$version.tar.gz wheel=dist/clusterrun-$version-py3-none-any.whl

[ -z "$(git status --porcelain)" ] || refuse "there are changes that are not committed: git status"
grep -qx "## $version ([0-9]\{4\}-[0-9][0-9]-[0-9][0-9])" CHANGELOG.md ||
    refuse "CHANGELOG.md has no heading '## $version ($(date +%F))'"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null ||
    refuse "there is a tag $tag; set the next version in clusterrun/__init__.py"

"$python" -m build --no-isolation
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch"
"$scratch/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt "$wheel" twine
"$scratch/bin/twine" check --strict "$sdist" "$wheel"
[ "$("$scratch/bin/clusterrun" --version)" = "clusterrun, version $version" ] || refuse "$wheel has another version"

git tag -a "$tag" -m "clusterrun $version"
cat <<END
clusterrun $version is built, checked and tagged. To publish it:
  git push --follow-tags
  twine upload $sdist $wheel
END
