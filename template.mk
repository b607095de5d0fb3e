# make docs    set up, then build the pages of docs/ into site/
# make copies  set up, then make projects from this one; their demo, tests and checks (minutes; K=smallest: one)

.PHONY: docs copies

docs: $(INSTALLED)
	$(BIN)/zensical build --clean --strict

copies: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -k "$(K)" tests/template/whole_copies.py
