package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) certificatesCommand() *cobra.Command {
	k := a.certificateKind()
	return k.kindCommand(
		"By what listeners of https answer", `  fakecloud certificates create shop --certificate shop.crt --private-key shop.key
  fakecloud certificates list`, "shop",
		k.createCommand(&cobra.Command{
			Use: "create NAME", Short: "Upload a certificate with its private key",
			Example: "  fakecloud certificates create shop --certificate shop.crt --private-key shop.key",
		}),
		k.renameCommand(),
	)
}

func (a *app) certificateKind() resourceKind[api.Certificate] {
	return resourceKind[api.Certificate]{
		app: a, name: "certificate", group: "certificates", prefix: "cert-", refs: "NAME|ID",
		list: listBy((*client.Client).ListCertificates),
		get:  (*client.Client).GetCertificate, remove: (*client.Client).DeleteCertificate,
		removable: "certificates that no listener has",
		cells: map[string]func(api.Certificate) string{
			"DOMAINS": func(c api.Certificate) string { return strings.Join(c.DomainNames, ",") },
		},
		create: createBy((*client.Client).CreateCertificate), update: updateBy((*client.Client).UpdateCertificate),
	}
}
