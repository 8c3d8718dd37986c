# Needs: Rust (rustup reads rust-toolchain.toml) and a C compiler. The Python test needs python3 with venv.

CARGO ?= cargo
# The simulator's seed for `make sim SEED=…`: one run with its whole trace.
SEED ?=
# Its mode: generic, amnesia, deaf, pause, observers, winner, tail, copied, handoff, repair, joint, forget, full, read-index, drift; all in turn if left out.
MODE ?=
# How many seeds `make sim` plays, and how long `make sim-long` goes on with fresh ones.
SEEDS ?= 10000
HOURS ?= 1

.PHONY: run test check fix bench timelines sim sim-mutants sim-long sim-quiet docs help

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

run:             ## build, and start a cluster on this machine; Ctrl-C ends it
	@$(CARGO) build --bin quorate
	@exec $${CARGO_TARGET_DIR:-target}/debug/quorate dev

test:            ## everything that must hold before a change goes in; prints minutes per part
	@.ci/parts format lint docs unit cluster sim leftovers

check:           ## format, lints, documentation; changes nothing
	@.ci/parts format lint docs

fix:             ## format and apply what clippy can fix by itself
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

bench:           ## figures of this machine, audited: publish, steady, failover
	@.ci/bench

timelines:       ## every fault of the design's timelines, often, audited: table, picture, verdict; REPEAT=3 for a short one
	@.ci/timelines

sim:             ## simulate a cluster: many seeds, or one with its trace: make sim SEED=42 MODE=amnesia
	@$(CARGO) run --quiet $(if $(SEED),,--release) -p quorate-sim -- \
		$(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(MODE),--mode $(MODE))

sim-mutants:     ## leave out one rule after the other: each must be caught, by the checker that ought to
	@$(CARGO) run --quiet --release -p quorate-sim -- --mutants

sim-long:        ## simulate fresh seeds for HOURS=1
	@$(CARGO) run --quiet --release -p quorate-sim -- --hours $(HOURS) $(if $(MODE),--mode $(MODE))

sim-quiet:       ## simulate quiet hours: HOURS=4 without a fault, and nobody may be suspected
	@$(CARGO) run --quiet --release -p quorate-sim -- --quiet $(HOURS)

docs:            ## build the API documentation
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
