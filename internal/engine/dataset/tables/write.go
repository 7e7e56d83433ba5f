package tables

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/vllm-vcr/conformance/trace"
)

// requestRow is a record of a trace. Times are in ms. Lists have a value for each output after the first; they are empty if a record has
// only the mean of its gaps.
type requestRow struct {
	Request       int64     `parquet:"request"` // its place in the trace, from 0
	Model         *string   `parquet:"model,optional,dict"`
	GPU           *string   `parquet:"gpu,optional,dict"`
	ArrivalMs     *float64  `parquet:"arrival_ms,optional"`
	PromptTokens  int64     `parquet:"prompt_tokens"`
	CachedTokens  int64     `parquet:"cached_tokens"`
	OutputTokens  int64     `parquet:"output_tokens"`
	Concurrency   int64     `parquet:"concurrency"`
	FinishReason  *string   `parquet:"finish_reason,optional,dict"`
	QueueMs       *float64  `parquet:"queue_ms,optional"`
	TTFTMs        *float64  `parquet:"ttft_ms,optional"` // none without an output
	TPOTMs        *float64  `parquet:"tpot_ms,optional"` // none with fewer than two tokens
	E2EMs         *float64  `parquet:"e2e_ms,optional"`
	ITLMs         []float64 `parquet:"itl_ms,list"`
	ITLTokens     []int32   `parquet:"itl_tokens,list"`
	NumRunning    []int32   `parquet:"num_running,list"`
	PrefillTokens []int32   `parquet:"prefill_tokens,list"`
}

// stepRow is what vLLM's scheduler said of a step.
type stepRow struct {
	TsMs          float64 `parquet:"ts_ms"`
	Running       int64   `parquet:"running"`
	Waiting       int64   `parquet:"waiting"`
	KVCacheUsage  float64 `parquet:"kv_cache_usage"`
	PrefixQueries int64   `parquet:"prefix_cache_queries"`
	PrefixHits    int64   `parquet:"prefix_cache_hits"`
}

// writeParquet writes requests of a trace, or steps, from stdin into a new file.
func writeParquet(kind, path string, from io.Reader) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			_ = os.Remove(path)
		}
	}()
	switch kind {
	case "requests":
		r, err := trace.NewReader(bufio.NewReader(from), "stdin", false, trace.Options{KeepExtra: true})
		if err != nil {
			return err
		}
		var record trace.Record
		meta := r.Meta()
		place := int64(-1)
		return writeRows(file, func() (row requestRow, err error) {
			if err = r.Next(&record); err == nil {
				place++
				row = requestRowOf(&record)
				row.Request, row.Model, row.GPU = place, meta.Model, meta.GPU
			}
			return row, err
		})
	case "steps":
		r := trace.NewStepReader(bufio.NewReader(from), "stdin", false, trace.Options{})
		var step trace.StepStats
		return writeRows(file, func() (row stepRow, err error) {
			if err = r.Next(&step); err == nil {
				s := &step.Scheduler
				row = stepRow{step.TsMs, int64(s.Running), int64(s.Waiting), s.KVCacheUsage, int64(s.PrefixCache.Queries), int64(s.PrefixCache.Hits)}
			}
			return row, err
		})
	}
	return fmt.Errorf("%q: want requests or steps", kind)
}

// writeRows writes rows until next returns [io.EOF].
func writeRows[Row any](w io.Writer, next func() (Row, error)) error {
	out := parquet.NewGenericWriter[Row](w, parquet.Compression(&zstd.Codec{}), parquet.MaxRowsPerRowGroup(100_000))
	for {
		row, err := next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err == nil {
			_, err = out.Write([]Row{row})
		}
		if err != nil {
			return err
		}
	}
}

func requestRowOf(r *trace.Record) requestRow {
	row := requestRow{
		ArrivalMs: clone(r.ArrivalMs), PromptTokens: int64(r.PromptTokens), CachedTokens: int64(r.CachedTokens), OutputTokens: int64(r.OutputTokens),
		Concurrency: int64(r.Concurrency), ITLMs: r.ITLMs, ITLTokens: int32s(r.ITLTokens),
	}
	if r.ITLCtx != nil {
		row.NumRunning, row.PrefillTokens = int32s(r.ITLCtx.NumRunning), int32s(r.ITLCtx.PrefillTokens)
	}
	if r.FinishReason != trace.FinishAbsent {
		reason := r.FinishReason.String()
		row.FinishReason = &reason
	}
	if ms, err := strconv.ParseFloat(string(r.Extra["queue_ms"]), 64); err == nil {
		row.QueueMs = &ms
	}
	if r.OutputTokens > 0 {
		first, end := r.TTFTMs, r.EndMs(0)
		row.TTFTMs, row.E2EMs = &first, &end
		if r.OutputTokens > 1 {
			each := (end - first) / float64(r.OutputTokens-1)
			row.TPOTMs = &each
		}
	}
	return row
}

func clone(v *float64) *float64 {
	if v == nil {
		return nil
	}
	c := *v
	return &c
}

func int32s(values []uint32) []int32 {
	list := make([]int32, len(values))
	for i, v := range values {
		list[i] = int32(min(v, 1<<31-1))
	}
	return list
}
