// Package monitor shows how a recording goes while it runs, and what came of it.
//
// Everything reads the same [recorder.Stats], as often as it likes: counters cost the recording nothing.
//
//   - [Progress] keeps one line on a terminal up to date, or, where there is none, logs the state now and then. A
//     [Screen] keeps that line and the lines of a log apart.
//   - [Serve] answers Prometheus: GET /metrics and GET /healthz.
//   - [Text] and [JSON] are the summary at the end.
package monitor
