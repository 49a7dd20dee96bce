package embedded

// The cluster's certificates. etcd has an authority of its own: with a shared
// one, every client of the API server could read and write the store directly.

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"time"

	"github.com/ccmlab/ccmlab/lab/state"
)

// validity is longer than any lab lives and short enough to be harmless when
// a folder is forgotten.
const validity = 365 * 24 * time.Hour

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// pair is a certificate with its key, as files.
type pair struct{ Cert, Key string }

func pairAt(dir, name string) pair {
	return pair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
}

// loadOrCreateAuthority reads the CA of this name, or makes it.
func loadOrCreateAuthority(dir, name string) (*authority, error) {
	files := pairAt(dir, name)
	certPEM, err := os.ReadFile(files.Cert)
	if errors.Is(err, fs.ErrNotExist) {
		return createAuthority(files, name)
	}
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(files.Key)
	if err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("%s or its key is no PEM file", files.Cert)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files.Cert, err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files.Key, err)
	}
	return &authority{cert: cert, key: key}, nil
}

func createAuthority(files pair, name string) (*authority, error) {
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "ccmlab-" + name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	ca := &authority{}
	err := ca.write(tmpl, files)
	return ca, err
}

// identity is what a certificate says of its holder. With addresses it can
// serve; every one can be a client.
type identity struct {
	name      string
	groups    []string
	addresses []string
	dnsNames  []string
}

// ensure writes a certificate for who, unless there is one already.
func (a *authority) ensure(dir, file string, who identity) (pair, error) {
	files := pairAt(dir, file)
	if _, err := os.Stat(files.Cert); err == nil {
		return files, nil
	}
	tmpl := &x509.Certificate{
		Subject:     pkix.Name{CommonName: who.name, Organization: who.groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    who.dnsNames,
	}
	for _, addr := range who.addresses {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.ParseIP(addr))
	}
	if len(who.addresses) > 0 {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	child := &authority{}
	return files, child.writeSignedBy(a, tmpl, files)
}

func (a *authority) write(tmpl *x509.Certificate, files pair) error {
	return a.writeSignedBy(a, tmpl, files)
}

// writeSignedBy makes a key, has parent sign the template for it, and writes
// both. The key goes first: a certificate without its key is of no use.
func (a *authority) writeSignedBy(parent *authority, tmpl *x509.Certificate, files pair) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	tmpl.SerialNumber = serial
	tmpl.NotBefore = time.Now().Add(-time.Minute)
	tmpl.NotAfter = time.Now().Add(validity)
	issuer, signer := parent.cert, parent.key
	if issuer == nil { // Self-signed.
		issuer, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, issuer, key.Public(), signer)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.key = key
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := state.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})); err != nil {
		return err
	}
	return state.WriteFile(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
