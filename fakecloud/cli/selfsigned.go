package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	caLifetime     = 10 * 365 * 24 * time.Hour
	serverLifetime = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced; that of a
	// process that runs on is not.
	renewBefore = 30 * 24 * time.Hour
)

// validSAN is a DNS name, perhaps for all of a domain.
var validSAN = regexp.MustCompile(`^(\*\.)?[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?$`)

// signed is a certificate, what signed it, and its key.
type signed struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// tlsDir is where certificates are kept: beside the data.
func (o *serveOptions) tlsDir() string {
	if o.data == store.Memory {
		return stateDir()
	}
	return filepath.Dir(o.data)
}

// selfSigned gives a server certificate for the names that clients may use, and
// the file of the CA that it can be verified with. Both are kept, and made anew
// only when they end soon or the names are others.
func (o *serveOptions) selfSigned(now time.Time) (*tls.Certificate, string, error) {
	names, err := o.names()
	if err != nil {
		return nil, "", err
	}
	caFile := filepath.Join(o.tlsDir(), "ca.crt")
	ca, err := load(caFile, filepath.Join(o.tlsDir(), "ca.key"))
	if err == nil && (ca == nil || now.Add(renewBefore).After(ca.cert.NotAfter)) {
		ca, err = o.issue("ca", &x509.Certificate{
			Subject: pkix.Name{CommonName: "fakecloud CA"}, NotAfter: now.Add(caLifetime),
			IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		}, nil, now)
	}
	if err != nil {
		return nil, "", err
	}
	server, err := load(filepath.Join(o.tlsDir(), "server.crt"), filepath.Join(o.tlsDir(), "server.key"))
	if err == nil && !server.serves(names, ca, now) {
		server, err = o.issue("server", forNames(names, now), ca, now)
	}
	if err != nil {
		return nil, "", err
	}
	return &tls.Certificate{Certificate: [][]byte{server.cert.Raw, ca.cert.Raw}, PrivateKey: server.key, Leaf: server.cert}, caFile, nil
}

// names are what the server may be called, each once and sorted.
func (o *serveOptions) names() ([]string, error) {
	names := []string{"localhost", "127.0.0.1"}
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return nil, misuse("--listen %q: want host:port, such as %s", o.listen, defaultListen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		names = append(names, ownNames()...)
	} else {
		names = append(names, host)
	}
	for _, name := range o.sans {
		if net.ParseIP(name) == nil && !validSAN.MatchString(name) {
			return nil, misuse("--tls-san %q: want an IP address or a DNS name", name)
		}
		names = append(names, name)
	}
	for i, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			names[i] = ip.String()
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ownNames are what others may call this machine, as far as it knows.
func ownNames() (names []string) {
	if host, err := os.Hostname(); err == nil && validSAN.MatchString(host) {
		names = append(names, host)
	}
	addrs, _ := net.InterfaceAddrs() // Without them, --tls-san says the rest.
	for _, addr := range addrs {
		if on, ok := addr.(*net.IPNet); ok && !on.IP.IsLinkLocalUnicast() { // Those are reached with a zone only.
			names = append(names, on.IP.String())
		}
	}
	return names
}

func forNames(names []string, now time.Time) *x509.Certificate {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "fakecloud"}, NotAfter: now.Add(serverLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return c
}

// serves tells whether a certificate is the CA's, for exactly these names and
// for a while yet.
func (s *signed) serves(names []string, ca *signed, now time.Time) bool {
	if s == nil || now.Add(renewBefore).After(s.cert.NotAfter) || s.cert.CheckSignatureFrom(ca.cert) != nil {
		return false
	}
	has := slices.Clone(s.cert.DNSNames)
	for _, ip := range s.cert.IPAddresses {
		has = append(has, ip.String())
	}
	slices.Sort(has)
	return slices.Equal(has, names)
}

// load reads a certificate and its key; nil when either is missing.
func load(certFile, keyFile string) (*signed, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("--tls-self-signed: %s, %s: %w; remove both to have them made anew", certFile, keyFile, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("--tls-self-signed: %s is not a key that this made; move it away", keyFile)
	}
	return &signed{pair.Leaf, key}, nil
}

// issue makes a certificate, signed by ca or, when that is nil, by itself, and
// writes it and its key.
func (o *serveOptions) issue(name string, c *x509.Certificate, ca *signed, now time.Time) (*signed, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	c.NotBefore = now.Add(-time.Hour) // Clocks differ.
	if ca == nil {
		ca = &signed{c, key}
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// The key goes first: a certificate is never there without its own.
	base := filepath.Join(o.tlsDir(), name)
	if err := os.Remove(base + ".crt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := writeSecret(base+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes})); err != nil {
		return nil, err
	}
	if err := writeSecret(base+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})); err != nil {
		return nil, err
	}
	if err := os.Chmod(base+".crt", 0o644); err != nil { //nolint:gosec // Certificates are for everyone.
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &signed{cert, key}, err
}
