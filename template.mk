# make docs    install, then build docs/ into site/
# make copies  install, then generate projects and run their demo, tests and checks (minutes; K=smallest: one project)

.PHONY: docs copies

docs: $(INSTALLED)
	$(BIN)/zensical build --clean --strict
# The search in pages that are opened from disk needs this script, which would otherwise be downloaded.
	sed -i 's|https://unpkg.com/iframe-worker/shim|javascripts/iframe-worker.js|' site/*.html

copies: $(INSTALLED)
	$(BIN)/pytest -k "$(K)" tests/template/whole_copies.py
