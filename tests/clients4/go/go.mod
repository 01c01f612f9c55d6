module whimbrel.test/clients4

go 1.24

require github.com/apache/rocketmq-client-go/v2 v2.1.2
