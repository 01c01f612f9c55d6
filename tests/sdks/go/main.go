// The Go SDK behind the words and lines of tests/sdks/README.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	ended = make(chan struct{})
	out   sync.Mutex
	clean = strings.NewReplacer("\n", " ", "\t", " ")
)

func say(words ...any) {
	parts := make([]string, len(words))
	for i, word := range words {
		parts[i] = clean.Replace(fmt.Sprint(word))
	}
	out.Lock()
	defer out.Unlock()
	fmt.Fprintln(os.Stdout, strings.Join(parts, "\t"))
}

func check(err error) {
	if err != nil {
		say("error", err)
		os.Exit(1)
	}
}

func isEnded() bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

func got(message *rmq.MessageView) string {
	body := string(message.GetBody())
	keys := slices.Sorted(slices.Values(message.GetKeys()))
	tag := ""
	if message.GetTag() != nil {
		tag = *message.GetTag()
	}
	say("got", body, message.GetMessageId(), message.GetDeliveryAttempt(), tag, strings.Join(keys, ","),
		message.GetProperties()["own"])
	return body
}

func produce(config *rmq.Config, topic, prefix string, count, pause int) {
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	say("ready")
	for n := 0; n < count || count == 0 && !isEnded(); n++ {
		body := fmt.Sprintf("%s-%d", prefix, n)
		message := &rmq.Message{Topic: topic, Body: []byte(body)}
		message.SetTag("ab"[n%2 : n%2+1])
		message.SetKeys(fmt.Sprintf("key-%d", n), prefix)
		message.AddProperty("own", fmt.Sprintf("value-%d", n))
		started := time.Now()
		receipts, err := producer.Send(context.Background(), message)
		if err != nil {
			say("failed", body, err)
		} else {
			say("sent", body, receipts[0].MessageID, time.Since(started).Milliseconds())
		}
		time.Sleep(time.Duration(pause) * time.Millisecond)
	}
	check(producer.GracefulStop())
}

func filters(topic, expression string) map[string]*rmq.FilterExpression {
	return map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression(expression)}
}

func simple(config *rmq.Config, topic, expression string) {
	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(filters(topic, expression)))
	check(err)
	check(consumer.Start())
	say("ready")
	put := map[string]bool{}
	for !isEnded() {
		messages, err := consumer.Receive(context.Background(), 32, 15*time.Second)
		if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") { // how this SDK says "none"
			say("error", err)
			time.Sleep(200 * time.Millisecond)
		}
		for _, message := range messages {
			body := got(message)
			word := "acked"
			if strings.HasPrefix(body, "later") && !put[body] {
				put[body] = true
				word = "later"
				err = consumer.ChangeInvisibleDuration(message, 10*time.Second)
			} else {
				err = consumer.Ack(context.Background(), message)
			}
			if err != nil {
				say("error", err)
			} else {
				say(word, body)
			}
		}
	}
	check(consumer.GracefulStop())
}

func push(config *rmq.Config, topic, expression string) {
	var lock sync.Mutex
	failed := map[string]bool{}
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		body := got(message)
		lock.Lock()
		defer lock.Unlock()
		if strings.HasPrefix(body, "fail") && !failed[body] {
			failed[body] = true
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(config, rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(filters(topic, expression)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
		rmq.WithPushConsumptionThreadCount(4), rmq.WithPushMaxCacheMessageCount(1024))
	check(err)
	check(consumer.Start())
	say("ready")
	<-ended
	check(consumer.GracefulStop())
}

func main() {
	if os.Getenv("SDK_PLAINTEXT") != "" {
		rmq.EnableSsl = false
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	role, endpoint, topic, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	config := &rmq.Config{Endpoint: endpoint, Credentials: &credentials.SessionCredentials{}}
	switch role {
	case "produce":
		count, _ := strconv.Atoi(os.Args[5])
		pause, _ := strconv.Atoi(os.Args[6])
		produce(config, topic, name, count, pause)
	case "simple":
		config.ConsumerGroup = name
		simple(config, topic, os.Args[5])
	case "push":
		config.ConsumerGroup = name
		push(config, topic, os.Args[5])
	}
	say("done")
}
