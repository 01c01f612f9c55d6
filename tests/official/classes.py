"""The test classes of RocketMQ 4.9.3 that run against any cluster, named below org.apache.rocketmq.test.

Those of `base/dledger` and `lmq` are left out, which start servers of their own, and two without tests:
`client.consumer.broadcast.BaseBroadCastIT` and `client.consumer.broadcast.order.OrderMsgBroadCastIT`.
"""

__all__ = ["CLASSES", "QUICK", "RACY"]

CLASSES = (
    "client.consumer.balance.NormalMsgDynamicBalanceIT",
    "client.consumer.balance.NormalMsgStaticBalanceIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgNotRecvIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgRecvCrashIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgRecvFailIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgRecvStartLaterIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgTwoDiffGroupRecvIT",
    "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "client.consumer.broadcast.tag.BroadCastTwoConsumerFilterIT",
    "client.consumer.broadcast.tag.BroadCastTwoConsumerSubDiffTagIT",
    "client.consumer.broadcast.tag.BroadCastTwoConsumerSubTagIT",
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.cluster.DynamicAddConsumerIT",
    "client.consumer.cluster.DynamicCrashConsumerIT",
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.tag.MulTagSubIT",
    "client.consumer.tag.TagMessageWith1ConsumerIT",
    "client.consumer.tag.TagMessageWithMulConsumerIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.async.AsyncSendWithMessageQueueIT",
    "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "client.producer.batch.BatchSendIT",
    "client.producer.exception.msg.ChinaPropIT",
    "client.producer.exception.msg.MessageExceptionIT",
    "client.producer.exception.msg.MessageUserPropIT",
    "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
    "client.producer.oneway.OneWaySendExceptionIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.oneway.OneWaySendWithMQIT",
    "client.producer.oneway.OneWaySendWithSelectorIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.producer.order.OrderMsgIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "client.producer.order.OrderMsgWithTagIT",
    "client.producer.querymsg.QueryMsgByIdExceptionIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
    "client.producer.transaction.TransactionalMsgIT",
    "delay.NormalMsgDelayIT",
    "smoke.NormalMessageSendAndRecvIT",
    "tls.TLS_IT",
    "tls.TLS_Mix2_IT",
    "tls.TLS_Mix_IT",
)

# Twenty seconds and more each, against RocketMQ's own servers; most of that is waiting.
SLOW = (
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "delay.NormalMsgDelayIT",
)

# Passes in three of four runs, with RocketMQ's servers and with ours (9 of 12 each): it sends as soon as its
# broadcasting consumers have started; what is there before a consumer asks for a queue's end is not for it.
RACY = ("client.consumer.broadcast.normal.BroadCastNormalMsgRecvFailIT",)
QUICK = tuple(name for name in CLASSES if name not in (*SLOW, *RACY))
