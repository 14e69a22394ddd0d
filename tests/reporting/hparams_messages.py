"""Reads events of TensorBoard's HParams plugin, with its message types."""

import tensorflow as tf
from google.protobuf import (
  descriptor_pb2,
  descriptor_pool,
  message_factory,
  struct_pb2,
)

PACKAGE = 'tensorboard.hparams'
KINDS = {'string': 9, 'double': 1, 'int32': 5}
# As in tensorboard/plugins/hparams: message -> field -> number, type; the enums
# of the originals are int32 here, which are encoded in the same way.
MESSAGES = {
  'HParamsPluginData': {
    'version': (1, 'int32'),
    'experiment': (2, 'Experiment'),
    'session_start_info': (3, 'SessionStartInfo'),
    'session_end_info': (4, 'SessionEndInfo'),
  },
  'Experiment': {
    'hparam_infos': (4, '*HParamInfo'),
    'metric_infos': (5, '*MetricInfo'),
  },
  'HParamInfo': {'name': (1, 'string'), 'type': (4, 'int32')},
  'MetricInfo': {'name': (1, 'MetricName'), 'display_name': (3, 'string')},
  'MetricName': {'group': (1, 'string'), 'tag': (2, 'string')},
  # A map is a list of keys and values.
  'SessionStartInfo': {'hparams': (1, '*Entry'), 'group_name': (4, 'string')},
  'Entry': {'key': (1, 'string'), 'value': (2, 'google.protobuf.Value')},
  'SessionEndInfo': {'status': (1, 'int32')},
}


def _message():
  file = descriptor_pb2.FileDescriptorProto(
    name='hparams_test.proto',
    package=PACKAGE,
    syntax='proto3',
    dependency=[struct_pb2.DESCRIPTOR.name],
  )
  for name, fields in MESSAGES.items():
    message = file.message_type.add(name=name)
    for field, (number, kind) in fields.items():
      added = message.field.add(name=field, number=number)
      added.label = 3 if kind.startswith('*') else 1
      kind = kind.removeprefix('*')
      if kind in KINDS:
        added.type = KINDS[kind]
      else:
        added.type = 11
        added.type_name = f'.{kind if "." in kind else f"{PACKAGE}.{kind}"}'
  pool = descriptor_pool.Default()
  pool.Add(file)
  found = pool.FindMessageTypeByName(f'{PACKAGE}.HParamsPluginData')
  return message_factory.GetMessageClass(found)


_MESSAGE = _message()


def read(path):
  """Returns tag -> message of an events file."""
  records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
  first, *events = map(tf.compat.v1.Event.FromString, records)
  assert first.file_version == 'brain.Event:2'
  found = {}
  for event in events:
    [value] = event.summary.value
    assert value.metadata.plugin_data.plugin_name == 'hparams'
    assert tf.make_ndarray(value.tensor).shape == (0,)
    content = value.metadata.plugin_data.content
    found[value.tag] = _MESSAGE.FromString(content)
  return found


def parameters(path):
  """Returns the parameters of a session."""
  start = read(path)['_hparams_/session_start_info'].session_start_info
  return {
    entry.key: getattr(entry.value, entry.value.WhichOneof('kind'))
    for entry in start.hparams
  }


def columns(path):
  """Returns parameter -> type of an experiment, and the tags of metrics."""
  [message] = read(path).values()
  infos = {info.name: info.type for info in message.experiment.hparam_infos}
  return infos, [info.name.tag for info in message.experiment.metric_infos]
