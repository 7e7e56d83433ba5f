package trace

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestWriterSamples are lines as traces in the field have them, then rarer keys.
func TestWriterSamples(t *testing.T) {
	tests := []struct {
		name string
		rec  Record
		want string
	}{
		{
			"bare",
			Record{PromptTokens: 10, OutputTokens: 1, TTFTMs: 5, Concurrency: 1, FinishReason: FinishAbsent},
			`{"prompt_tokens":10,"cached_tokens":0,"output_tokens":1,"ttft_ms":5.0,"concurrency":1}`,
		},
		{
			"summary",
			Record{PromptTokens: 128, OutputTokens: 100, TTFTMs: 45.2, ITLSummary: &ITLSummary{14.7, 99}, Concurrency: 4, FinishReason: FinishAbsent},
			`{"prompt_tokens":128,"cached_tokens":0,"output_tokens":100,"ttft_ms":45.2,"itl_summary":{"mean_ms":14.7,"count":99},"concurrency":4}`,
		},
		{
			"every key",
			Record{
				PromptTokens: 1, CachedTokens: 2, OutputTokens: 4, TTFTMs: -0.5, ITLMs: []float64{1, 2.25}, ITLTokens: []uint32{2, 1},
				ITLSummary: &ITLSummary{}, EngineClock: ClockUsed, TapTimes: &TapTimes{TTFTMs: 1.5, ITLMs: []float64{0, 4}}, Concurrency: 3, ArrivalMs: new(1e-7),
				ITLCtx:      &ITLCtx{NumRunning: []uint32{1, 2}, PrefillTokens: []uint32{0, 7}},
				BlockHashes: []uint64{1<<64 - 1}, MMHashes: []string{"a\"\\\n\r\t\x02é"}, PromptTokenIDs: []uint32{9}, OutputTokenIDs: []uint32{1, 2, 3, 4},
				FinishReason: FinishStop, Extra: map[string]jsonRaw{"z": jsonRaw("{\n \"a\": 1\n}"), "a\n": jsonRaw(`null`)},
			},
			`{"prompt_tokens":1,"cached_tokens":2,"output_tokens":4,"ttft_ms":-0.5,"itl_ms":[1.0,2.25],"itl_tokens":[2,1],` +
				`"itl_summary":{"mean_ms":0.0,"count":0},"engine_clock":"used","tap_times":{"ttft_ms":1.5,"itl_ms":[0.0,4.0]},"concurrency":3,"arrival_ms":1e-7,"itl_ctx":{"num_running":[1,2],"prefill_tokens":[0,7]},` +
				`"block_hashes":[18446744073709551615],"mm_hashes":["a\"\\\n\r\t\u0002é"],"prompt_token_ids":[9],"output_token_ids":[1,2,3,4],` +
				`"finish_reason":"stop","a\n":null,"z":{  "a": 1 }}`,
		},
		{
			"empty arrays",
			Record{ITLMs: []float64{}, ITLTokens: []uint32{}, BlockHashes: []uint64{}, MMHashes: []string{}, OutputTokenIDs: []uint32{}, FinishReason: FinishLength},
			`{"prompt_tokens":0,"cached_tokens":0,"output_tokens":0,"ttft_ms":0.0,"itl_ms":[],"itl_tokens":[],"concurrency":0,` +
				`"block_hashes":[],"mm_hashes":[],"output_token_ids":[],"finish_reason":"length"}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Split(string(writeTrace(t, false, Meta{}, tt.rec)), "\n")
			if got[0] != `{"meta":{}}` || got[1] != tt.want || got[2] != "" || len(got) != 3 {
				t.Errorf("\nwant %s\ngot  %s", tt.want, got[1:])
			}
		})
	}
}

func TestFloatForm(t *testing.T) {
	for want, f := range map[string]float64{
		"0.0": 0, "-0.0": math.Copysign(0, -1), "10.0": 10, "7.206": 7.206, "0.00001": 1e-5, "9.99e-6": 9.99e-6,
		"1000000000000000.0": 1e15, "1e16": 1e16, "-1.5e300": -1.5e300, "5e-324": 5e-324, "1e-10": 1e-10,
		"1.7976931348623157e308": math.MaxFloat64, "123456.78901234567": 123456.78901234567,
	} {
		b, err := appendFloat(nil, f)
		require.True(t, err == nil && string(b) == want, "want %s, got %s, %v", want, b, err)
		if back, err := (&cursor{b: b}).float(); err != nil || math.Float64bits(back) != math.Float64bits(f) {
			t.Errorf("%s reads back as %v, %v", want, back, err)
		}
	}
}

// TestFloatExact compares the short path of float with strconv at its borders.
func TestFloatExact(t *testing.T) {
	for _, s := range []string{
		"0", "-0", "0.1", "9007199254740991", "9007199254740992", "9007199254740993", "90071992547409.93", "1e22", "1e23",
		"0.000000000000000001", "0.0000000000000000001", "1.000000000000000001", "0.0000000000000000000001", "0.00000000000000000000001", "123456789012345678", "1234567890123456789.5",
		"99999999999999999999", "18446744073709551616", "0.30000000000000004", "2.2250738585072011e-308", "1E5", "1e+5", "-12.5e-3",
		"3.4028234663852886e38", "21.444938999999998", strings.Repeat("9", 300), "0." + strings.Repeat("0", 400) + "1",
	} {
		want, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		c := &cursor{b: []byte(s)}
		got, err := c.float()
		require.True(t, err == nil && math.Float64bits(got) == math.Float64bits(want) && c.i == len(s), "%s: want %v, got %v, %v", s, want, got, err)
	}
}

func TestWriterRefuses(t *testing.T) {
	for field, change := range map[string]func(*Record){
		"ttft_ms: want a time":             func(r *Record) { r.TTFTMs = math.NaN() },
		"itl_ms[0]: want a time":           func(r *Record) { r.ITLMs = []float64{math.Inf(1)} },
		"itl_summary.mean_ms: want a time": func(r *Record) { r.ITLSummary = &ITLSummary{MeanMs: math.Inf(-1)} },
		"arrival_ms: want a time":          func(r *Record) { r.ArrivalMs = new(math.NaN()) },
		"mm_hashes: the string":            func(r *Record) { r.MMHashes = []string{"\xff"} },
		"output_token_ids: want 1 entries": func(r *Record) { r.OutputTokenIDs = []uint32{1, 2} },
		"ttft_ms: a known key":             func(r *Record) { r.Extra = map[string]jsonRaw{"ttft_ms": jsonRaw("1")} },
		"x: want a value":                  func(r *Record) { r.Extra = map[string]jsonRaw{"x": jsonRaw("nul")} },
		"x: want the end":                  func(r *Record) { r.Extra = map[string]jsonRaw{"x": jsonRaw("1 2")} },
		"y: want a value":                  func(r *Record) { r.Extra = map[string]jsonRaw{"y": nil} },
	} {
		var out bytes.Buffer
		w, err := NewWriter(&out, false, Meta{})
		require.NoError(t, err)
		bad, good := small(1), small(2)
		change(&bad)
		wantError(t, w.Write(&bad), "record 1 not written: "+field)
		require.NoErrorf(t, errors.Join(w.Write(&good), w.Close()), "%s: the writer did not stay usable", field)
		tr, err := readBytes(out.Bytes(), false, Options{Strict: true})
		require.True(t, err == nil && len(tr.Records) == 1 && tr.Records[0].PromptTokens == 2, "%s: read back %+v, %v", field, tr, err)
	}
	for field, m := range map[string]Meta{
		"meta.gpu: the string":   {GPU: new("\xff")},
		"meta.block_size: want":  {BlockSize: new(-1)},
		"meta.tp: a known key":   {Extra: map[string]jsonRaw{"tp": jsonRaw("1")}},
		"meta.x: the number":     {Extra: map[string]jsonRaw{"x": jsonRaw("1e999")}},
		`meta."a\n": want a val`: {Extra: map[string]jsonRaw{"a\n": jsonRaw("")}},
	} {
		_, err := NewWriter(io.Discard, false, m)
		wantError(t, err, "the meta line is not written: "+field)
	}
}

// TestDeterministic also shows that the bytes follow the calls, not the maps.
func TestDeterministic(t *testing.T) {
	extra := map[string]jsonRaw{}
	for i := range 50 {
		extra[strconv.Itoa(i)] = jsonRaw("1")
	}
	rec := small(1)
	rec.Extra = extra
	one := writeTrace(t, true, Meta{Extra: extra}, rec, rec)
	two := writeTrace(t, true, Meta{Extra: extra}, rec, rec)
	require.True(t, bytes.Equal(one, two), "the same calls gave different bytes")
	if header := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}; !bytes.HasPrefix(one, header) {
		t.Errorf("gzip header: want %x, got %x", header, one[:10])
	}
}

// quota fails when more than n bytes were written, after writing what fits, as
// a full disk does.
type quota struct {
	bytes.Buffer
	n int
}

func (q *quota) Write(p []byte) (int, error) {
	if q.Len()+len(p) > q.n {
		n, _ := q.Buffer.Write(p[:q.n-q.Len()])
		return n, syscall.ENOSPC
	}
	return q.Buffer.Write(p)
}

// TestWriteFailure fills the disk at every byte of a trace: the error must tell
// what is safe, and what it calls safe must be readable.
func TestWriteFailure(t *testing.T) {
	records := []Record{small(1), small(2), small(3)}
	for _, gz := range []bool{false, true} {
		whole := writeTrace(t, gz, Meta{GPU: new("cpu")}, records...)
		for n := range len(whole) {
			q := &quota{n: n}
			err := writeUntilFull(q, gz, records)
			var we *WriteError
			if !errors.As(err, &we) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("gzip %v, full at %d: want a *WriteError of a full disk, got %v", gz, n, err)
			}
			if we.Bytes > int64(n) {
				t.Fatalf("gzip %v, full at %d: %d bytes are called safe", gz, n, we.Bytes)
			}
			tr, err := readBytes(q.Bytes()[:we.Bytes], gz, Options{})
			require.True(t, err == nil && len(tr.Records) == we.Records, "gzip %v, full at %d: %v; read %d records, %v", gz, n, we, len(tr.Records), err)
			require.Equal(t, we.What == "the meta line", we.Bytes == 0, "gzip %v, full at %d: %v", gz, n, we)
		}
	}
}

func writeUntilFull(out io.Writer, gz bool, records []Record) error {
	w, err := NewWriter(out, gz, Meta{GPU: new("cpu")})
	if err != nil {
		return err
	}
	for i := range records {
		if err := w.Write(&records[i]); err != nil {
			if again := w.Write(&records[i]); again != err || w.Close() != err {
				return errors.New("a dead writer does not keep its error")
			}
			return err
		}
	}
	return w.Close()
}

func TestWriteFailureText(t *testing.T) {
	line := int64(len(writeTrace(t, false, Meta{}, small(1)))) // the meta line and a record
	q := &quota{n: int(line) + 3}
	w, err := NewWriter(q, false, Meta{})
	require.NoError(t, err)
	rec := small(1)
	err = errors.Join(w.Write(&rec), w.Write(&rec))
	want := "trace: record 2 not written: no space left on device; the 1 records before it are safe (the first " + strconv.FormatInt(line, 10) + " bytes)"
	require.True(t, err != nil && err.Error() == want, "want %q\ngot  %v", want, err)
	if w.Records() != 1 || w.Bytes() != line {
		t.Errorf("records %d, bytes %d", w.Records(), w.Bytes())
	}
}

func TestWriteDevFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full here: %v", err)
	}
	defer f.Close()
	for _, gz := range []bool{false, true} {
		_, err := NewWriter(f, gz, Meta{})
		require.ErrorIs(t, err, syscall.ENOSPC, "/dev/full")
	}
}

// lossy claims to have written less than it was given, without an error.
type lossy struct{}

func (lossy) Write(p []byte) (int, error) { return len(p) - 1, nil }

func TestShortWrite(t *testing.T) {
	if _, err := NewWriter(lossy{}, false, Meta{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("want io.ErrShortWrite, got %v", err)
	}
}

func TestWriteAfterClose(t *testing.T) {
	w, err := NewWriter(io.Discard, true, Meta{})
	require.NoError(t, err)
	rec := small(1)
	require.NoError(t, w.Close())
	if err := w.Write(&rec); err == nil {
		t.Error("a closed writer takes records")
	}
}

// TestKilledWriter never closes: what Write returned for is in the file.
func TestKilledWriter(t *testing.T) {
	for _, name := range []string{"a.jsonl", "a.jsonl.gz"} {
		path := filepath.Join(t.TempDir(), name)
		f, err := os.Create(path)
		require.NoError(t, err)
		defer f.Close()
		w, err := NewWriter(f, IsGzip(path), Meta{Source: new("tap")})
		require.NoError(t, err)
		for n := range 4 {
			tr, err := Read(path, Options{})
			require.NoError(t, err)
			require.True(t, len(tr.Records) == n && *tr.Meta.Source == "tap", "%s: after %d records: read %d", name, n, len(tr.Records))
			rec := small(n)
			require.NoError(t, w.Write(&rec))
		}
	}
}
