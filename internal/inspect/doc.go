// Package inspect summarizes the times in recordings, and checks whether a model learned from
// some predicts another.
//
// [SummarizeReader], [ReadTimeline] and [ReadCompared] read a trace record by record and keep
// none, so that a trace of a million requests takes little memory. [Summaries], [Timeline] and
// [Comparison] write what they found: as text, tables, images, pages, and files for Perfetto.
//
// [Simulate] runs a [Workload], the requests of a recording without their times, through
// the scheduler and the KV cache of an [Engine] on a virtual clock: a minute of an
// engine takes some hundredths of a second. [Calibrate] learns a model from some
// recordings, predicts another that the model has not seen, and compares the two.
//
// [OpenInput] reads the results of load generators and public traces as traces. [SpanWriter] writes a trace as
// OpenTelemetry spans, and [LoadPlan] as a plan for a load generator.
package inspect
