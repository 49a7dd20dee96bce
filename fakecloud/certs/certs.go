// Package certs issues certificates, for a cloud that signs its own and for a lab. It knows neither, nor where the
// files are kept. Begin with Issue.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// Margin is how far a clock may be behind, or be set back, before a new certificate is not valid yet.
const Margin = 24 * time.Hour

// Pair is a certificate with its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// Issue makes a key and the certificate of a template for it, valid from Margin before now. ca signs it; if that is
// nil, it signs itself.
func Issue(template *x509.Certificate, ca *Pair, now time.Time) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	template.NotBefore = now.Add(-Margin)
	if ca == nil {
		ca = &Pair{template, key}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, key.Public(), ca.Key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &Pair{cert, key}, err
}

// Load reads a pair from its files.
func Load(certFile, keyFile string) (*Pair, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", certFile, keyFile, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: its key signs nothing", keyFile)
	}
	return &Pair{pair.Leaf, key}, nil
}

// Encode gives the contents of a pair's files.
func (p *Pair) Encode() (cert, key []byte, err error) {
	raw, err := x509.MarshalPKCS8PrivateKey(p.Key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), err
}
