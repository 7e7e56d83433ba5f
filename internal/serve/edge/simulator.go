package edge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// Simulator makes an edge do as llm-d-inference-sim: /admin/config needs no token unless there is one, /fake_metrics changes fake metrics,
// a request may ask for an error with X-Return-Error, and fake metrics have its labels.
type Simulator struct {
	// RequestIDs puts X-Request-Id into answers.
	RequestIDs bool
	// MaxLoRAs is a label of fake metrics, and MaxModelLen the largest bound of their numbers of tokens.
	MaxLoRAs, MaxModelLen int
	// BlockSize and Blocks are labels of vllm:cache_config_info.
	BlockSize, Blocks int
	// Seed is that of the ids of requests: servers with the same seed give the same ids, and so the same answers, in the same order.
	Seed uint64

	requests atomic.Uint64
	// Settings are shown and changed by /admin/config beside those of the edge; nil for none.
	Settings Settings
}

// Settings are values that can be changed while the server runs.
type Settings interface {
	// Shown are the values by their keys.
	Shown() map[string]any
	// Change checks new values. It removes those that it knows, and apply makes them count.
	Change(values map[string]json.RawMessage) (apply func(), err error)
}

// tokenBounds are the bounds of buckets of numbers of tokens.
func (s *Simulator) tokenBounds() []float64 {
	n := 1
	for n < len(tokenBounds) && tokenBounds[n] <= float64(s.MaxModelLen) {
		n++
	}
	return tokenBounds[:n]
}

// nextID is the id of a request that has none, in the form of a UUID.
func (s *Simulator) nextID() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d-%d", s.Seed, s.requests.Add(1)))
	id := hex.EncodeToString(sum[:16])
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

// change hands values to the settings. Without any, nothing is changed.
func (s *Simulator) change(values map[string]json.RawMessage) (apply func(), err error) {
	if s == nil || s.Settings == nil {
		return func() {}, nil
	}
	return s.Settings.Change(values)
}

// merged adds members to a JSON object.
func merged(text []byte, more map[string]any) ([]byte, error) {
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	maps.Copy(all, more)
	text, err := json.Marshal(all)
	return append(text, '\n'), err
}

// fakeMetricsPath is what older releases of the simulator have in the place of /admin/config.
const fakeMetricsPath = "/fake_metrics"

func (e *Edge) serveFakeMetrics(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdmin))
	if err == nil {
		var change []byte
		if change, err = json.Marshal(map[string]json.RawMessage{"fake-metrics": body}); err == nil {
			e.admin.mu.Lock()
			defer e.admin.mu.Unlock()
			err = e.configure(change)
		}
	}
	if err != nil {
		apiError{status: http.StatusInternalServerError, message: "Failed to update fake metrics: " + err.Error()}.write(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// SelfSigned makes a certificate for this machine that nobody has signed. It lasts for a year, and its key is nowhere but in memory.
func SelfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil && host != "" {
		names = append(names, host)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{Organization: []string{"vllm-vcr"}}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, nil
}
