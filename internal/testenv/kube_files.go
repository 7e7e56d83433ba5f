package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A janitor removes a folder once this process has ended.
type janitor struct {
	cmd *exec.Cmd
	// pipe is closed by the end of this process, and must not be by the collector.
	pipe io.Closer
}

// processDir returns a new folder that is removed when this process has ended, however that happens, and who does it.
// The path is short, as sockets lie in it.
func processDir(t testing.TB) (dir string, cleaner *janitor) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kube")
	if err != nil {
		t.Fatal(err)
	}
	// Those who write into the folder are killed at the moment in which the pipe closes.
	const script = `cat; for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$0" && break; sleep 0.5; done`
	arguments := []string{"sh", "-c", script, dir}
	// In a session of its own, as who ends this process may well end its whole group.
	if setsid, err := exec.LookPath("setsid"); err == nil {
		arguments = append([]string{setsid}, arguments...)
	}
	cmd := exec.Command(arguments[0], arguments[1:]...)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return dir, &janitor{cmd: cmd, pipe: pipe}
}

// writeCertificates writes ca.crt, and server.crt with server.key for 127.0.0.1 and localhost.
func writeCertificates(dir string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testenv"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &key.PublicKey, caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"ca.crt":     {Type: "CERTIFICATE", Bytes: caDER},
		"server.crt": {Type: "CERTIFICATE", Bytes: serverDER},
		"server.key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
