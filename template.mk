# make docs    set up, then build the pages of docs/ into site/
# make copies  set up, then make projects from this one; their demo, tests and checks (minutes; K=smallest: one)

.PHONY: docs copies

docs: $(INSTALLED)
	$(BIN)/zensical build --clean --strict
# the search of pages that are opened from the disk needs this script, which would be fetched from elsewhere
	sed -i 's|https://unpkg.com/iframe-worker/shim|javascripts/iframe-worker.js|' site/*.html

copies: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -k "$(K)" tests/template/whole_copies.py
