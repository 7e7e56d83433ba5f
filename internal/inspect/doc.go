// Package inspect tells what recordings say about time, and whether a model learned from
// some predicts another.
//
// [Simulate] runs a [Workload], the requests of a recording without their times, through
// the scheduler and the KV cache of an [Engine] on a virtual clock: a minute of an
// engine takes some hundredths of a second. [Calibrate] learns a model from some
// recordings, predicts another that the model has not seen, and compares the two.
package inspect
